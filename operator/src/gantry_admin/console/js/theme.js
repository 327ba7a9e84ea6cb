// Dark or light, before the first paint: what was chosen here once, else what the system says, also when that changes.
// No module, so that it runs before anything is drawn.
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
        // Not remembered, then.
      }
      return chosen;
    },
  };
})();
