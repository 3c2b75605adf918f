"use strict";
const place = document.getElementById("progress");
const look = async () => {
  try {
    const answer = await fetch(place.dataset.progress, { credentials: "same-origin" });
    const progress = await answer.json();
    place.textContent = progress.text;
    if (progress.is_over) {
      location.reload();
      return;
    }
  } catch {
    location.reload();
    return;
  }
  setTimeout(look, 1000);
};
setTimeout(look, 1000);
