"use strict";
(() => {
  const root = document.documentElement;
  const prefersDark = matchMedia("(prefers-color-scheme: dark)");

  // The choice lives as long as the page is open: nothing is stored on the reader's machine.
  const button = document.getElementById("theme");
  const isDark = () => (root.dataset.theme ?? (prefersDark.matches ? "dark" : "light")) === "dark";
  const tell = () => button.setAttribute("aria-pressed", String(isDark()));
  button.hidden = false;
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    tell();
  });
  prefersDark.addEventListener("change", tell);
  tell();

  // On a phone the contents would push the results off the screen.
  const contents = document.querySelector("nav details");
  if (contents && matchMedia("(max-width: 70rem)").matches) contents.open = false;

  // Only what can be scrolled needs a place in the order of the Tab key. What is off the screen is not even laid
  // out, so each box is looked at when it gets a size.
  const sizes = new ResizeObserver((entries) => {
    for (const { target } of entries) {
      if (target.scrollWidth > target.clientWidth) target.tabIndex = 0;
      else target.removeAttribute("tabindex");
    }
  });
  for (const box of document.querySelectorAll(".scroll")) sizes.observe(box);

  // A word under the pointer is marked in every row of its heat-map.
  let same = [];
  document.addEventListener("pointerover", ({ target }) => {
    for (const token of same) token.classList.remove("same");
    const token = target.closest(".tokens > span");
    const place = token ? [...token.parentElement.children].indexOf(token) : -1;
    same = token ? [...token.closest(".strips").querySelectorAll(".tokens")].map((text) => text.children[place]) : [];
    for (const token of same) token.classList.toggle("same", same.length > 1);
  });

  let opened = [];
  addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details:not([open])")];
    for (const part of opened) part.open = true;
  });
  addEventListener("afterprint", () => {
    for (const part of opened) part.open = false;
  });

  const links = new Map([...document.querySelectorAll("nav a")].map((link) => [link.hash.slice(1), link]));
  const entry = (trial) => links.get(trial.id).parentElement;

  // Sections that come into view get their true heights in the next frames, which moves what is below them.
  const land = (trial, frames = 3) => {
    trial.scrollIntoView();
    if (frames) requestAnimationFrame(() => land(trial, frames - 1));
  };

  const browse = (chapter) => {
    const bar = chapter.querySelector(".browse");
    const selects = [...bar.querySelectorAll("select")];
    const reset = bar.querySelector("button");
    const count = bar.querySelector(".count");
    const trials = [...chapter.querySelectorAll(".trial")].map((trial) => [trial, trial.dataset.picks.split(" ")]);
    const fits = (picks, except) =>
      selects.every((select, place) => select === except || select.value === "" || select.value === picks[place]);

    const apply = () => {
      let shown = 0;
      for (const [trial, picks] of trials) {
        const isShown = fits(picks);
        shown += isShown;
        trial.hidden = entry(trial).hidden = !isShown;
      }
      selects.forEach((select, place) => {
        // What would leave nothing to show cannot be chosen.
        const left = new Set(trials.filter(([, picks]) => fits(picks, select)).map(([, picks]) => picks[place]));
        for (const option of select.options) option.disabled = option.value !== "" && !left.has(option.value);
        select.classList.toggle("chosen", select.value !== "");
      });
      reset.disabled = selects.every((select) => select.value === "");
      const text = `${shown} of ${trials.length} shown`;
      if (count.textContent !== text) count.textContent = text;
    };
    const choose = () => {
      apply();
      // Somebody who has read on sees the first result of the new choice, not the middle of another one.
      const first = trials.find(([trial]) => !trial.hidden)[0];
      if (first.getBoundingClientRect().top < 0) land(first);
    };
    const clear = () => {
      for (const select of selects) select.value = "";
    };
    bar.hidden = false;
    bar.addEventListener("change", choose);
    reset.addEventListener("click", () => {
      clear();
      choose();
      selects[0].focus();
    });
    // Browsers may put back what was chosen before a page is shown again.
    addEventListener("pageshow", apply);

    return (name) => {
      if (!trials.some(([trial]) => trial.id === name && trial.hidden)) return;
      clear();
      apply();
      land(document.getElementById(name));
    };
  };
  const reveals = [...document.querySelectorAll(".many")].map(browse);
  // A link to a section that was not chosen shows it all the same.
  addEventListener("hashchange", () => {
    for (const reveal of reveals) reveal(location.hash.slice(1));
  });

  const seen = new Set();
  const watch = new IntersectionObserver((entries) => {
    for (const entry of entries) seen[entry.isIntersecting ? "add" : "delete"](entry.target.id);
    const current = [...links.keys()].filter((name) => seen.has(name)).at(-1);
    for (const [name, link] of links) {
      if (name === current) link.setAttribute("aria-current", "location");
      else link.removeAttribute("aria-current");
    }
  }, { rootMargin: "-10% 0px -70% 0px" });
  for (const name of links.keys()) {
    const target = document.getElementById(name);
    if (target) watch.observe(target);
  }
})();
