"use strict";
// Everything works without this file; it explains places at once, adds keys, and repeats what a lost connection swallowed.
(() => {
  const form = document.getElementById("answer");
  document.getElementById("note")?.focus();
  if (!form) return;
  const hint = document.getElementById("hint");
  const button = document.getElementById("save");
  const maps = [...form.querySelectorAll("fieldset.map")];
  document.getElementById("keys").hidden = false;

  const say = (text, problem) => {
    hint.textContent = text;
    hint.classList.toggle("problem", Boolean(problem));
  };

  const ranks = () => maps.map((_, place) => Number(new FormData(form).get(`a${place}`) ?? 0));

  const explain = () => {
    const given = ranks();
    const open = given.filter((rank) => !rank).length;
    if (open) return say(open === given.length ? "" : `${open} of ${given.length} maps without a place`);
    let expected = 1;
    for (const rank of [...new Set(given)].sort()) {
      if (rank !== expected) {
        if (expected === 1) return say("No map has place 1, which the best one gets.", true);
        const before = Math.max(...given.filter((other) => other < rank));
        const sharing = given.filter((other) => other === before).length;
        return say(`${sharing > 1 ? `${sharing} maps share place ${before}, so` : `After place ${before}`} the next place is ${expected}, not ${rank}.`, true);
      }
      expected += given.filter((other) => other === rank).length;
    }
    say("");
  };

  if (maps.length) {
    form.addEventListener("change", explain);
    explain();
  }

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("summary, a, button")) {
      if (!/^[a-f1-9]$/i.test(event.key) || event.ctrlKey || event.metaKey || event.altKey) return;
    }
    if (/^[a-f]$/i.test(event.key)) {
      const map = maps["abcdef".indexOf(event.key.toLowerCase())];
      if (!map) return;
      (map.querySelector("input[type=radio]:checked") ?? map.querySelector("input[type=radio]")).focus();
      map.scrollIntoView({ block: "nearest" });
      event.preventDefault();
    } else if (/^[1-9]$/.test(event.key)) {
      const inside = maps.length ? document.activeElement.closest("fieldset.map") ?? maps[ranks().findIndex((rank) => !rank)] : form;
      const choice = inside?.querySelectorAll("input[type=radio]")[Number(event.key) - 1];
      if (!choice) return;
      choice.checked = true;
      choice.focus();
      choice.dispatchEvent(new Event("change", { bubbles: true }));
      event.preventDefault();
    }
  });

  const sleep = (seconds) => new Promise((done) => setTimeout(done, 1000 * seconds));

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (button.disabled) return;
    if (maps.length && hint.classList.contains("problem")) return form.submit(); // the page explains it, and offers what was meant
    button.disabled = true;
    for (let wait = 1; ; wait = Math.min(8, 2 * wait)) {
      const body = new URLSearchParams(new FormData(form)); // what is chosen now, also if it was changed while waiting
      try {
        const answer = await fetch(form.action, { method: "POST", body, headers: { Accept: "application/json" }, signal: AbortSignal.timeout(20000) });
        if (answer.ok) return location.assign((await answer.json()).next);
        if (answer.status < 500 && answer.status !== 429) return form.submit();
      } catch { /* the server or the connection is away */ }
      say("The connection is lost. Your answer is still here and will be sent again.", true);
      await sleep(wait * (0.5 + Math.random())); // not everybody at the same moment
    }
  });
  window.addEventListener("pageshow", () => { button.disabled = false; });
})();
