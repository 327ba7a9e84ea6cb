// Dark or light, before the first paint: what was chosen here once, else what the system says. No module, so that it
// runs before anything is drawn.
"use strict";
(() => {
  const KEY = "gantry-theme";
  const root = document.documentElement;
  let chosen = null;
  try {
    chosen = localStorage.getItem(KEY);
  } catch {
    chosen = null; // Storage may be forbidden; then the choice lasts as long as the page.
  }
  if (chosen === "dark" || chosen === "light") root.dataset.theme = chosen;

  window.gantryTheme = {
    now: () => root.dataset.theme ?? (matchMedia("(prefers-color-scheme: light)").matches ? "light" : "dark"),
    toggle() {
      root.dataset.theme = this.now() === "dark" ? "light" : "dark";
      try {
        localStorage.setItem(KEY, root.dataset.theme);
      } catch {
        // Not remembered, then.
      }
      return root.dataset.theme;
    },
  };
})();
