// The colours chosen before, set before anything is painted; page.js has the switch.
"use strict";
try {
  const theme = localStorage.getItem("theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch {
  // storage is blocked: the system's colours hold
}
