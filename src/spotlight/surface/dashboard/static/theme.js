// Light or dark before the first paint; the button cycles through: as the system, light, dark.
(() => {
  "use strict";
  const KEY = "spotlight-theme";
  const NAMES = { auto: "◐ Auto", light: "☀ Light", dark: "☾ Dark" };
  const stored = () => { try { return localStorage.getItem(KEY) || "auto"; } catch { return "auto"; } };
  const apply = (theme) => {
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
  };
  apply(stored());
  const changed = () => window.dispatchEvent(new Event("spotlight:theme"));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", changed);
  document.addEventListener("DOMContentLoaded", () => {
    const button = document.querySelector("[data-theme-button]");
    const show = () => {
      button.textContent = NAMES[stored()];
      button.setAttribute("aria-label", `colours: ${stored() === "auto" ? "as the system" : stored()}`);
    };
    show();
    button.addEventListener("click", () => {
      const order = Object.keys(NAMES);
      const next = order[(order.indexOf(stored()) + 1) % order.length];
      try { localStorage.setItem(KEY, next); } catch { /* a private window keeps nothing */ }
      apply(next);
      show();
      changed();
    });
  });
})();
