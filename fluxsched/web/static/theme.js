// What is known before the page is: that there is script, and the colours chosen before; set before anything is painted; page.js has the switch.
"use strict";
document.documentElement.classList.add("scripted"); // what the script fills has its place from the first
try {
  const theme = localStorage.getItem("theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch {
  // storage is blocked: the system's colours hold
}
