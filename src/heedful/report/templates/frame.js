"use strict";
(() => {
  const root = document.documentElement;
  const prefersDark = matchMedia("(prefers-color-scheme: dark)");

  // The theme is not stored on the reader's machine.
  const button = document.getElementById("theme");
  const isDark = () => (root.dataset.theme ?? (prefersDark.matches ? "dark" : "light")) === "dark";
  const update = () => button.setAttribute("aria-pressed", String(isDark()));
  button.hidden = false;
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    update();
  });
  prefersDark.addEventListener("change", update);
  update();

  // Only boxes that scroll need the Tab key; their sizes are known when they are laid out.
  const sizes = new ResizeObserver((entries) => {
    for (const { target } of entries) {
      if (target.scrollWidth > target.clientWidth) target.tabIndex = 0;
      else target.removeAttribute("tabindex");
    }
  });
  for (const box of document.querySelectorAll(".scroll")) sizes.observe(box);

  // The token under the pointer is outlined in every row of its heat-map.
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
    opened = [...document.querySelectorAll("details:not([open], .unprinted)")];
    for (const part of opened) part.open = true;
  });
  addEventListener("afterprint", () => {
    for (const part of opened) part.open = false;
  });
})();
