"use strict";
(() => {
  const FOLD_AFTER = 90;
  const ALIGNED_UP_TO = 60;
  const SHOWN_METRICS = 3;
  const element = (name) => document.getElementById(name);
  const holder = element("data");
  const size = Number(holder.dataset.size);
  const { noun } = holder.dataset;
  const stored = JSON.parse(holder.textContent);
  const [layers, heads] = stored.heads;
  const list = element("list");
  const words = element("words");
  const count = element("count");
  const reset = element("reset");
  const order = element("order");
  const direction = element("direction");
  const units = element("units");
  // The selects of a layer and a head; null where the page has no maps.
  const selects = layers ? [element("layer"), element("head")] : null;
  const selections = [...document.querySelectorAll("#selections button")];
  // The last two are missing where no label is known.
  const filters = ["predicted", "label", "outcome"].map(element).filter(Boolean);
  const pagers = [...document.querySelectorAll(".pager")];
  const boxes = [...document.querySelectorAll("#rows input")];
  const others = [...document.querySelectorAll(".other")].map((link) => [link, link.getAttribute("href")]);

  // Data is inserted as text only: neither `append` nor these properties parse markup.
  const make = (tag, properties = {}, ...children) => {
    const made = Object.assign(document.createElement(tag), properties);
    made.append(...children);
    return made;
  };

  const minus = (text) => text.replace(/^-/, "−");
  const format = (value) => {
    if (value === null) return "undefined";
    if (value === 0 || Math.abs(value) >= 999.5) return minus(String(Math.round(value)));
    const [digits, exponent] = value.toExponential(2).split("e");
    if (Math.abs(value) >= 1e-4) return minus(value.toFixed(Math.max(0, 2 - Number(exponent))));
    const raised = [...exponent.replace("+", "")].map((sign) => (sign === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[sign])).join("");
    return `${minus(digits)} × 10${raised}`;
  };

  const shade = (value, peak) => {
    if (value === null) return "u";
    const step = peak ? Math.round((20 * Math.abs(value)) / peak) : 0;
    return step ? `${value < 0 ? "n" : "p"}${String(step).padStart(2, "0")}` : "";
  };

  const texts = stored.texts.map((text, place) => ({ ...text, place, joined: new Set(text.joined) }));
  const places = new Map(texts.map(({ uid, place }) => [uid, place]));
  const named = (value) => (Number.isInteger(value) ? stored.classes[value] : format(value));
  const gap = (text, place) => (place === 0 || text.joined.has(place) ? "" : " ");
  const spelled = (text) => text.tokens.map((unit, place) => gap(text, place) + unit).join("");
  const isKnown = (text) => text.label !== null && text.predicted !== null;

  // Places of the tokens of each word; `words` is empty where every token is a word.
  const groups = (text) => {
    if (text.groups) return text.groups;
    text.groups = [];
    text.tokens.forEach((_, place) => {
      const isSame = place > 0 && text.words.length && text.words[place] === text.words[place - 1];
      if (isSame) text.groups.at(-1).push(place);
      else text.groups.push([place]);
    });
    return text.groups;
  };
  const pooled = (weights, group, isSummed) => {
    if (group.length === 1) return weights[group[0]];
    const known = group.map((place) => weights[place]).filter((value) => value !== null);
    if (!known.length) return null;
    const sum = known.reduce((total, value) => total + value, 0);
    return isSummed ? sum : sum / known.length;
  };
  const wordWeights = (text, place) => {
    const { weights } = text.rows[place];
    return groups(text).map((group) => pooled(weights, group, stored.rows[place].summed));
  };
  // Maps of a text, head by head: a byte s and a byte w per word stand for weights w / 255 / 2^(s / 16).
  const headMaps = (text) => {
    if (text.decoded) return text.decoded;
    const bytes = Uint8Array.from(atob(text.maps), (letter) => letter.charCodeAt(0));
    const width = bytes.length / (layers * heads);
    text.decoded = Array.from({ length: layers * heads }, (_, map) => {
      const own = bytes.subarray(map * width, (map + 1) * width);
      return Array.from(own.subarray(1), (weight) => weight / 255 / 2 ** (own[0] / 16));
    });
    return text.decoded;
  };
  // The mean of the maps of a layer and a head, each of which may be "" for all.
  const headWeights = (text, layer, head) => {
    const maps = headMaps(text).filter(
      (_, map) => (layer === "" || Math.floor(map / heads) === Number(layer)) && (head === "" || map % heads === Number(head)),
    );
    return maps[0].map((_, word) => maps.reduce((total, map) => total + map[word], 0) / maps.length);
  };
  const headName = (layer, head) =>
    `attention, ${layer === "" ? "all layers" : `layer ${layer}`}, ${head === "" ? "all heads" : `head ${head}`}`;

  // A text in the units that are shown: their tokens, the gap before them, and whether people marked them.
  const layout = (text) => {
    const marked = text.marked ? new Set(text.marked) : null;
    if (units?.value === "pieces") {
      return {
        tokens: text.tokens,
        gaps: text.tokens.map((_, place) => gap(text, place)),
        second: text.second,
        marked: marked && text.tokens.map((_, place) => marked.has(place)),
        values: (place) => text.rows[place].weights,
        ofWords: (values) => groups(text).flatMap((group, word) => group.map(() => values[word])),
      };
    }
    const words = groups(text);
    return {
      tokens: words.map((group) => group.map((place) => text.tokens[place]).join("")),
      gaps: words.map(([first], place) => (place === 0 ? "" : text.words.length ? " " : gap(text, first))),
      second: text.second ? words.findIndex(([first]) => first >= text.second) : 0,
      marked: marked && words.map((group) => group.some((place) => marked.has(place))),
      values: (place) => wordWeights(text, place),
      ofWords: (values) => values,
    };
  };

  // 1 minus the mean rank correlation of each two rows that are shown, with mean ranks of ties.
  const ranks = (values) => {
    const order = values.map((_, place) => place).sort((one, other) => values[one] - values[other]);
    const found = new Array(values.length);
    for (let from = 0, to = 0; from < order.length; from = to) {
      while (to < order.length && values[order[to]] === values[order[from]]) to += 1;
      for (let place = from; place < to; place += 1) found[order[place]] = (from + to - 1) / 2;
    }
    const mean = (found.length - 1) / 2;
    const centred = found.map((rank) => rank - mean);
    const size = Math.hypot(...centred);
    return size ? centred.map((rank) => rank / size) : null;
  };
  let compared = "";
  let distances = [];
  const disagreement = () => {
    const shown = boxes.filter((box) => box.checked).map((box) => Number(box.value)).filter((place) => !stored.rows[place].adversarial);
    if (compared !== shown.join(" ")) {
      compared = shown.join(" ");
      distances = texts.map((text) => {
        const rows = shown.filter((place) => text.rows[place] && !text.rows[place].weights.includes(null));
        const ranked = rows.map((place) => ranks(wordWeights(text, place))).filter(Boolean);
        if (ranked.length < 2) return null;
        // The squared length of the sum of unit vectors holds all their products.
        const sums = ranked[0].map((_, place) => ranked.reduce((total, row) => total + row[place], 0));
        const square = sums.reduce((total, value) => total + value * value, 0);
        return 1 - (square - ranked.length) / (ranked.length * (ranked.length - 1));
      });
    }
    return (text) => distances[text.place];
  };

  // The searched text: uid and text on separate lines, built on first use.
  const searched = (text) => (text.searched ??= `${text.uid}\n${spelled(text)}`.toLowerCase());
  const terms = () =>
    (words.value.toLowerCase().match(/"[^"]+"|[^\s"]+/g) ?? []).map((term) => term.replaceAll('"', ""));

  const keys = {
    uid: () => (text) => text.place,
    length: () => (text) => text.tokens.length,
    probability: () => (text) => text.probability,
    disagreement,
    metric: (place) => (text) => text.metrics[place],
    row: (place) => (text) => text.rows[place]?.divergence ?? null,
  };

  let chosen = texts;
  let page = 0;
  const pages = () => Math.max(1, Math.ceil(chosen.length / size));

  const choose = () => {
    const wanted = terms();
    const [predicted, label, outcome] = ["predicted", "label", "outcome"].map((name) => element(name)?.value ?? "");
    chosen = texts.filter((text) => {
      if (predicted !== "" && text.predicted !== Number(predicted)) return false;
      if (label !== "" && text.label !== Number(label)) return false;
      if (outcome && (!isKnown(text) || (text.label === text.predicted) !== (outcome === "right"))) return false;
      return wanted.every((term) => searched(text).includes(term));
    });
    const [kind, place] = order.value.split(" ");
    const key = keys[kind](Number(place));
    const sign = Number(direction.value);
    // Texts without the number come last; ties keep the order of uids.
    chosen.sort((one, other) => {
      const [a, b] = [key(one), key(other)];
      if (a === null || b === null) return (a === null) - (b === null) || one.place - other.place;
      return sign * (a - b) || one.place - other.place;
    });
    for (const field of [words, ...filters]) field.classList.toggle("chosen", field.value !== "");
    order.classList.toggle("chosen", order.selectedIndex > 0);
    direction.classList.toggle("chosen", direction.selectedIndex > 0);
    reset.disabled = words.value === "" && filters.every((field) => field.value === "");
    for (const button of selections) {
      const { outcome, order: by, direction: way } = button.dataset;
      const isOn = (element("outcome")?.value ?? "") === outcome && order.value === by && direction.value === way;
      button.setAttribute("aria-pressed", String(isOn));
    }
  };

  const fact = (name, value, className = "") => make("div", { className }, make("dt", {}, name), make("dd", {}, make("bdi", {}, value)));
  const facts = (text) => {
    const found = [];
    if (text.predicted !== null) found.push(fact("predicted", `${named(text.predicted)} (${format(text.probability)})`));
    if (text.label !== null) {
      const isWrong = isKnown(text) && text.label !== text.predicted;
      found.push(fact(isWrong ? "wrong; label" : "label", named(text.label), isWrong ? "wrong" : ""));
    }
    if (!stored.patches) found.push(fact("words", String(groups(text).length)));
    if (order.value === "disagreement") found.push(fact("disagreement", format(disagreement()(text))));
    // Of many numbers the first are shown, and the one that texts are sorted by.
    text.metrics.forEach((value, place) => {
      const isShown = place < SHOWN_METRICS || order.value === `metric ${place}`;
      if (value !== null && isShown) found.push(fact(stored.metrics[place], format(value)));
    });
    return make("dl", { className: "about" }, ...found);
  };

  const ramp = (names) => names.map((className) => make("i", { className: `ramp ${className}` }));
  const scale = (peak, isSigned) => {
    const end = (text) => make("span", { className: "end" }, text);
    const negative = isSigned ? [end(`−${format(peak)}`), ...ramp(["n20", "n13", "n06"])] : [];
    return make("span", { className: "scale" }, ...negative, end("0"), ...ramp(["p06", "p13", "p20"]), end(format(peak)));
  };
  const distance = ({ divergence, bound, change, certified }) =>
    `divergence ${format(divergence)} of at most ${format(bound)} (${certified ? "proven maximum" : "not proven maximal"}); output changes by ${format(change)}`;

  const tokens = (text, row, from, to, marks) => {
    const parts = [];
    for (let place = from; place < to; place += 1) {
      if (text.second && place === text.second) parts.push(make("i", { className: "second", title: "the second part" }, " "));
      const token = text.tokens[place];
      const isHit = marks.some((mark) => token.toLowerCase().includes(mark));
      const shown = row.isMark ? (row.values[place] ? "marked" : "") : shade(row.values[place], row.peak);
      const className = [shown, isHit ? "hit" : ""].filter(Boolean).join(" ");
      if (place > from) parts.push(text.gaps[place]);
      const title = row.isMark ? (row.values[place] ? "marked" : "not marked") : format(row.values[place]);
      parts.push(make("span", { className, title }, token));
    }
    return make("div", { className: "tokens", dir: "auto" }, ...parts);
  };
  const strips = (text, rows, [from, to], marks) => {
    const layout = rows.length < 2 ? "" : text.tokens.length <= ALIGNED_UP_TO ? "aligned" : "beside";
    const made = rows.map((row) => {
      const name = make("p", { className: "strip-name" }, make("bdi", {}, row.name));
      if (!row.isMark) name.append(scale(row.peak, row.isSigned));
      const shown = make("div", {}, tokens(text, row, from, to, marks));
      if (row.note && from === 0) shown.append(make("p", { className: "row-note" }, row.note));
      return make("div", { className: "strip" }, name, shown);
    });
    return make("div", { className: `strips ${layout}` }, ...made);
  };
  const table = (uid, text, rows) => {
    const heading = (name, className = "") => make("th", { scope: "col", className }, make("bdi", {}, name));
    const head = make("tr", {}, heading(units?.value === "pieces" ? "piece" : stored.patches ? "row, column" : "word"), ...rows.map(({ name }) => heading(name, "number")));
    const cell = (row, place) => (row.isMark ? (row.values[place] ? "marked" : "–") : format(row.values[place]));
    const lines = text.tokens.map((unit, place) =>
      make("tr", {}, make("th", { scope: "row" }, make("div", {}, make("bdi", {}, unit))),
        ...rows.map((row) => make("td", { className: "number" }, cell(row, place)))));
    const caption = make("caption", {}, make("div", {}, `Weights: ${uid}`));
    const whole = make("table", {}, caption, make("thead", {}, head), make("tbody", {}, ...lines));
    const scroll = make("div", { className: "scroll", tabIndex: 0, role: "group", ariaLabel: `Weights: ${uid}` }, whole);
    return make("figure", { className: "table" }, scroll);
  };
  const folded = (summary, content, className = "") => {
    const fold = make("details", { className }, make("summary", {}, summary));
    if (typeof content !== "function") fold.append(content);
    else fold.addEventListener("toggle", () => fold.append(content()), { once: true });
    return fold;
  };

  // The image, and beside it the image under the scores of each row.
  const [POSITIVE, NEGATIVE] = [[255, 130, 30], [70, 120, 255]];
  const patchMap = (text, row) => {
    const [down, across] = stored.patches;
    const canvas = make("canvas", { width: across, height: down, role: "img" });
    const context = canvas.getContext("2d");
    const drawn = context.createImageData(across, down);
    row.values.forEach((value, place) => {
      const opacity = row.peak ? Math.abs(value ?? 0) / row.peak : 0;
      drawn.data.set([...(value < 0 ? NEGATIVE : POSITIVE), Math.round(225 * opacity)], 4 * place);
    });
    context.putImageData(drawn, 0, 0);
    const said = (place) => `row ${Math.floor(place / across)}, column ${place % across}: ${format(row.values[place])}`;
    const highest = row.values.reduce((best, value, place) => ((value ?? -Infinity) > (row.values[best] ?? -Infinity) ? place : best), 0);
    canvas.ariaLabel = `${row.name}, highest in ${said(highest)}`;
    canvas.addEventListener("pointermove", ({ offsetX, offsetY }) => {
      const [column, line] = [(offsetX / canvas.clientWidth) * across, (offsetY / canvas.clientHeight) * down].map(Math.floor);
      canvas.title = said(Math.min(down - 1, Math.max(0, line)) * across + Math.min(across - 1, Math.max(0, column)));
    });
    return canvas;
  };
  const pictures = (text, rows) => {
    const picture = (alt) => (text.image ? [make("img", { src: `data:image/png;base64,${text.image}`, alt })] : []);
    const tile = (name, shown, ...more) =>
      make("div", { className: "tile" }, make("div", { className: "picture" }, ...shown), make("p", { className: "strip-name" }, make("bdi", {}, name), ...more));
    const image = text.image ? [tile("image", picture(`image ${text.uid}`))] : [];
    const maps = rows.map((row) => tile(row.name, [...picture(""), patchMap(text, row)], scale(row.peak, row.isSigned)));
    return make("div", { className: "pictures" }, ...image, ...maps);
  };

  // A table of layers and heads; a cell is the share of attention on words, and a button that selects its head.
  const unfolded = new Set();
  const gridTitle = (text, layer, head) => {
    const share = headMaps(text)[layer * heads + head].reduce((total, weight, word) => total + weight * groups(text)[word].length, 0);
    return [share, `layer ${layer}, head ${head}: ${Math.round(100 * share)} % of the attention is on ${stored.patches ? "patches" : "words"}`];
  };
  const headGrid = (text) => {
    const [layer, head] = selects.map((select) => select.value);
    const isChosen = (line, column) => String(line) === layer && String(column) === head;
    const current = layer === "" || head === "" ? [0, 0] : [Number(layer), Number(head)];
    const cell = (line, column) => {
      const [share, title] = gridTitle(text, line, column);
      const tabIndex = line === current[0] && column === current[1] ? 0 : -1;
      const button = make("button", { type: "button", className: shade(share, 1), title, ariaLabel: title, tabIndex }, String(Math.round(100 * share)));
      button.setAttribute("aria-pressed", String(isChosen(line, column)));
      Object.assign(button.dataset, { layer: line, head: column });
      return make("td", {}, button);
    };
    const numbers = (count) => Array.from({ length: count }, (_, number) => number);
    const header = make("tr", {}, make("th", { scope: "col" }, "layer \\ head"), ...numbers(heads).map((column) => make("th", { scope: "col" }, String(column))));
    const lines = numbers(layers).map((line) => make("tr", {}, make("th", { scope: "row" }, String(line)), ...numbers(heads).map((column) => cell(line, column))));
    const caption = `Percent of the attention on ${stored.patches ? "patches" : "words"}; the rest is on special tokens. A cell selects its layer and head.`;
    const table = make("table", { className: "head-grid", ariaLabel: caption }, make("thead", {}, header), make("tbody", {}, ...lines));
    table.addEventListener("click", ({ target }) => {
      const button = target.closest("button");
      if (button) chooseHead(text, button);
    });
    // One stop for the Tab key; the arrow keys move inside the grid.
    table.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
      const { layer: line, head: column } = event.target.dataset;
      if (!step || line === undefined) return;
      event.preventDefault();
      const next = table.querySelector(`[data-layer="${Number(line) + step[0]}"][data-head="${Number(column) + step[1]}"]`);
      if (!next) return;
      event.target.tabIndex = -1;
      next.tabIndex = 0;
      next.focus();
    });
    return make("div", {}, make("p", { className: "row-note" }, caption), make("div", { className: "scroll", tabIndex: -1 }, table));
  };
  const chooseHead = (text, button) => {
    const { layer, head } = button.dataset;
    const isOn = button.getAttribute("aria-pressed") === "true";
    [selects[0].value, selects[1].value] = isOn ? ["", ""] : [layer, head];
    element("head-shown").checked = true;
    const [x, y] = [scrollX, scrollY];
    show();
    scrollTo(x, y);
    const own = [...list.children].find((made) => made.dataset.uid === text.uid);
    own.querySelector(`[data-layer="${layer}"][data-head="${head}"]`).focus({ preventScroll: true });
  };

  const article = (text, marks) => {
    const wanted = boxes.filter((box) => box.checked).map((box) => Number(box.value));
    const missing = wanted.filter((place) => !text.rows[place]).map((place) => stored.rows[place].name);
    const shown = layout(text);
    const rows = wanted.filter((place) => text.rows[place]).map((place) => {
      const values = shown.values(place);
      const { name, adversarial } = stored.rows[place];
      const peak = Math.max(0, ...values.map((value) => Math.abs(value ?? 0)));
      const isSigned = values.some((value) => value < 0);
      return { name, peak, values, isSigned, note: adversarial ? distance(text.rows[place]) : "" };
    });
    if (selects && element("head-shown").checked) {
      const chosen = selects.map((select) => select.value);
      const values = text.maps ? shown.ofWords(headWeights(text, ...chosen)) : [];
      if (text.maps) rows.push({ name: headName(...chosen), peak: Math.max(0, ...values), values, isSigned: false, note: "" });
      else missing.push("attention by layer and head");
    }
    if (shown.marked) rows.unshift({ name: stored.marked, values: shown.marked, isMark: true, note: "" });
    const length = shown.tokens.length;
    // A few remaining words are not folded.
    const cut = !stored.patches && length > (FOLD_AFTER * 4) / 3 ? FOLD_AFTER : length;
    const link = make("a", { className: "uid", href: `#${encodeURIComponent(text.uid)}`, title: `Link to this ${noun.slice(0, -1)}` }, make("bdi", {}, text.uid));
    const made = make("figure", { className: "heat", tabIndex: -1 }, make("figcaption", {}, link), facts(text));
    made.dataset.uid = text.uid;
    made.append(stored.patches ? pictures(text, rows) : strips(shown, rows, [0, cut], marks));
    if (cut < length) made.append(folded(`${length - cut} more words`, strips(shown, rows, [cut, length], marks)));
    if (missing.length) made.append(make("p", { className: "missing-rows" }, `Not stored for this ${noun.slice(0, -1)}: ${missing.join("; ")}.`));
    if (rows.length) made.append(folded("Numbers", () => table(text.uid, shown, rows), "unprinted"));
    if (text.maps) {
      // A grid stays open when a click on it draws the page again.
      const isOpen = unfolded.has(text.uid);
      const fold = folded("Layers and heads", isOpen ? headGrid(text) : () => headGrid(text), "unprinted");
      fold.open = isOpen;
      fold.addEventListener("toggle", () => (fold.open ? unfolded.add(text.uid) : unfolded.delete(text.uid)));
      made.append(fold);
    }
    return made;
  };

  const show = () => {
    page = Math.min(Math.max(0, page), pages() - 1);
    const marks = terms().flatMap((term) => term.split(/\s+/)).filter(Boolean);
    const from = page * size;
    const shown = chosen.slice(from, from + size);
    list.replaceChildren(...shown.map((text) => article(text, marks)));
    if (!shown.length) list.append(make("p", { className: "muted" }, `No ${noun.slice(0, -1)} matches.`));
    const range = shown.length ? `${from + 1} to ${from + shown.length} of ` : "";
    const all = chosen.length === texts.length ? "" : ` (of ${texts.length})`;
    count.textContent = `${range}${chosen.length} ${noun}${all}`;
    for (const pager of pagers) {
      const [previous, next] = pager.querySelectorAll("button");
      const input = pager.querySelector("input");
      pager.hidden = pages() === 1;
      previous.disabled = page === 0;
      next.disabled = page === pages() - 1;
      input.value = page + 1;
      input.max = pages();
      pager.querySelector(".pages").textContent = `of ${pages()}`;
    }
  };
  const renew = () => {
    choose();
    page = 0;
    show();
  };
  const turn = (to) => {
    page = to;
    show();
    list.scrollIntoView();
  };
  const clear = () => {
    for (const field of [words, ...filters]) field.value = "";
  };

  const asked = () => {
    try {
      return decodeURIComponent(location.hash.slice(1));
    } catch {
      return location.hash.slice(1);
    }
  };
  // A link shows its text even if the filters hide it.
  const reveal = () => {
    for (const [link, address] of others) link.href = address + (places.has(asked()) ? location.hash : "");
    const place = places.get(asked());
    if (place === undefined) {
      if (asked() && !element(asked())) count.textContent = `There is no ${noun.slice(0, -1)} “${asked()}” here; ${count.textContent}`;
      return;
    }
    if (!chosen.includes(texts[place])) {
      clear();
      choose();
    }
    page = Math.floor(chosen.indexOf(texts[place]) / size);
    show();
    const target = [...list.children].find((made) => made.dataset.uid === asked());
    target.classList.add("target");
    target.scrollIntoView();
    target.focus({ preventScroll: true });
  };

  for (const name of ["choose", "rows", "selections", "heads"]) if (element(name)) element(name).hidden = false;
  element("choose").addEventListener("input", renew);
  element("rows").addEventListener("input", () => {
    if (order.value === "disagreement") renew();
    else show();
  });
  element("heads")?.addEventListener("input", show);
  for (const button of selections) {
    button.addEventListener("click", () => {
      const isOn = button.getAttribute("aria-pressed") === "true";
      const { outcome, order: by, direction: way } = button.dataset;
      if (element("outcome")) element("outcome").value = isOn ? "" : outcome;
      order.value = isOn ? "uid" : by;
      direction.value = isOn ? "1" : way;
      renew();
    });
  }
  reset.addEventListener("click", () => {
    clear();
    renew();
    words.focus();
  });
  for (const pager of pagers) {
    for (const button of pager.querySelectorAll("button")) {
      button.addEventListener("click", () => {
        turn(page + Number(button.value));
        list.focus({ preventScroll: true });
      });
    }
    pager.querySelector("input").addEventListener("change", ({ target }) => turn((Number.parseInt(target.value, 10) || 1) - 1));
  }
  addEventListener("hashchange", reveal);
  // Browsers may restore form fields when a page is shown again.
  addEventListener("pageshow", () => {
    renew();
    reveal();
  });
})();
