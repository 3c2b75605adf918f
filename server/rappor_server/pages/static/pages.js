"use strict";
const place = document.querySelector("[data-progress]");
const look = async () => {
  try {
    const answer = await fetch(place.dataset.progress, { credentials: "same-origin" });
    const progress = await answer.json();
    if (!progress.is_over) {
      place.textContent = progress.text;
      setTimeout(look, 1000);
      return;
    }
  } catch { /* the page itself says what is wrong */ }
  location.reload();
};
setTimeout(look, 1000);
