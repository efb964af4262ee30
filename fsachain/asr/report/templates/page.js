"use strict";
// Tables sort by the heads of their columns; a second click turns the order round. Cells without a number stay last.
function sortRows(table, column, direction) {
  const body = table.tBodies[0];
  const numeric = table.tHead.rows[0].cells[column].classList.contains("number");
  const entries = Array.from(body.rows, (row, place) => {
    const cell = row.cells[column];
    const key = cell.dataset.key === undefined ? null : Number(cell.dataset.key);
    return { row, place, key, text: cell.textContent };
  });
  entries.sort((a, b) => {
    if (numeric && (a.key === null || b.key === null)) {
      return (a.key === null) - (b.key === null) || a.place - b.place;
    }
    const order = numeric ? a.key - b.key : a.text.localeCompare(b.text, undefined, { numeric: true });
    return direction * order || a.place - b.place;
  });
  body.append(...entries.map((entry) => entry.row));
}

document.querySelectorAll("table.sortable th[scope=col]").forEach((head) => {
  head.querySelector("button").addEventListener("click", () => {
    const table = head.closest("table");
    const ascending = head.getAttribute("aria-sort") !== "ascending";
    table.querySelectorAll("th[aria-sort]").forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", ascending ? "ascending" : "descending");
    sortRows(table, head.cellIndex, ascending ? 1 : -1);
  });
});

// A word or phone plays from its start to its end; one recording at a time is heard.
document.querySelectorAll("article.utterance").forEach((article) => {
  const audio = article.querySelector("audio");
  if (!audio) {
    article.querySelectorAll("button.play").forEach((button) => { button.disabled = true; });
    return;
  }
  let end = Infinity;
  article.querySelectorAll("button.play").forEach((button) => {
    button.addEventListener("click", () => {
      audio.currentTime = Number(button.dataset.start);
      end = Number(button.dataset.end);
      audio.play();
    });
  });
  audio.addEventListener("timeupdate", () => {
    if (audio.currentTime >= end) {
      end = Infinity;
      audio.pause();
    }
  });
  audio.addEventListener("play", () => {
    document.querySelectorAll("audio").forEach((other) => { if (other !== audio) { other.pause(); } });
  });
});

// On a phone a picture fits the column; a tap shows it in its own size.
document.querySelectorAll("figure img").forEach((image) => {
  image.addEventListener("click", () => image.classList.toggle("large"));
});

// Paper has no clicks: what is folded up is printed too.
window.addEventListener("beforeprint", () => {
  document.querySelectorAll("details").forEach((details) => { details.open = true; });
});
