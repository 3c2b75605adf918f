"use strict";
const status = document.querySelector("[data-progress]");
const update = async () => {
  try {
    const response = await fetch(status.dataset.progress, { credentials: "same-origin" });
    const progress = await response.json();
    if (!progress.is_over) {
      status.textContent = progress.text;
      setTimeout(update, 1000);
      return;
    }
  } catch { /* the reloaded page shows the problem */ }
  location.reload();
};
setTimeout(update, 1000);
