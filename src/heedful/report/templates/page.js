"use strict";
(() => {
  // On a phone the contents would push the results off the screen.
  const contents = document.querySelector("nav details");
  if (contents && matchMedia("(max-width: 70rem)").matches) contents.open = false;

  const links = new Map([...document.querySelectorAll("nav a")].map((link) => [link.hash.slice(1), link]));
  const entry = (trial) => links.get(trial.id).parentElement;

  // Sections get their true heights when they come into view, which moves what is below them.
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
        // Options that would leave nothing are disabled.
        const left = new Set(trials.filter(([, picks]) => fits(picks, select)).map(([, picks]) => picks[place]));
        for (const option of select.options) option.disabled = option.value !== "" && !left.has(option.value);
        select.classList.toggle("chosen", select.value !== "");
      });
      reset.disabled = selects.every((select) => select.value === "");
      const text = `${shown} of ${trials.length} ${bar.dataset.noun}`;
      if (count.textContent !== text) count.textContent = text;
    };
    const choose = () => {
      apply();
      // A reader further down sees the first matching section.
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
    // Browsers may restore form fields when a page is shown again.
    addEventListener("pageshow", apply);

    return (name) => {
      if (!trials.some(([trial]) => trial.id === name && trial.hidden)) return;
      clear();
      apply();
      land(document.getElementById(name));
    };
  };
  const reveals = [...document.querySelectorAll(".many")].map(browse);
  // A link shows its section even if the filters hide it.
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
