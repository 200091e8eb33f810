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
    opened = [...document.querySelectorAll("details:not([open], .unprinted)")];
    for (const part of opened) part.open = true;
  });
  addEventListener("afterprint", () => {
    for (const part of opened) part.open = false;
  });
})();
