// The theme, dark or light, set before the first paint: the user's choice, else the system's preference, also when that
// changes. It is not a module, so that it runs before anything is drawn.
"use strict";
(() => {
  const KEY = "gantry-theme";
  const root = document.documentElement;
  const light = matchMedia("(prefers-color-scheme: light)");
  let chosen = null;
  try {
    chosen = localStorage.getItem(KEY);
  } catch {
    chosen = null; // Storage may be forbidden; then the choice lasts as long as the page.
  }
  const show = () => {
    const isChosen = chosen === "dark" || chosen === "light";
    root.dataset.theme = isChosen ? chosen : light.matches ? "light" : "dark";
  };
  light.addEventListener("change", show);
  show();

  window.gantryTheme = {
    now: () => root.dataset.theme,
    toggle() {
      chosen = this.now() === "dark" ? "light" : "dark";
      show();
      try {
        localStorage.setItem(KEY, chosen);
      } catch {
        // Without storage the choice lasts as long as the page.
      }
      return chosen;
    },
  };
})();
