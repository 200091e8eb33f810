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

  // Only what can be scrolled needs a place in the order of the Tab key.
  const scrolls = document.querySelectorAll(".scroll");
  const settle = () => {
    for (const box of scrolls) {
      if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
      else box.removeAttribute("tabindex");
    }
  };
  settle();
  addEventListener("resize", settle);
  document.addEventListener("toggle", settle, true);

  let opened = [];
  addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details:not([open])")];
    for (const part of opened) part.open = true;
  });
  addEventListener("afterprint", () => {
    for (const part of opened) part.open = false;
  });

  const links = new Map([...document.querySelectorAll("nav a")].map((link) => [link.hash.slice(1), link]));
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
