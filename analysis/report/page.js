"use strict";
// Tables sort and filter; marks of figures show what they stand for; paper shows what is folded.
const UNITS = {B: 1, kB: 1e3, MB: 1e6, GB: 1e9, TB: 1e12};

function quantity(text) {
  const found = text.replace(/,/g, "").match(/-?\d+(?:\.\d+)?/);
  if (!found) return null;
  const unit = text.trim().split(" ").pop();
  return Number(found[0]) * (UNITS[unit] || 1);
}

function key(row, column, numeric) {
  const text = row.cells[column].textContent;
  return numeric ? quantity(text) : text;
}

function sort(table, column, header) {
  const descending = header.getAttribute("aria-sort") === "ascending";
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  header.setAttribute("aria-sort", descending ? "descending" : "ascending");
  const numeric = header.classList.contains("n");
  const keyed = [...table.tBodies[0].rows].map(row => [key(row, column, numeric), row]);
  const sign = descending ? -1 : 1;
  keyed.sort(([a], [b]) => {
    if (a === null || b === null) return (a === null) - (b === null);  // unknown comes last
    return sign * (numeric ? a - b : a.localeCompare(b, "en", {numeric: true}));
  });
  table.tBodies[0].append(...keyed.map(([, row]) => row));
}

function filter(box, input) {
  const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
  const rows = [...box.querySelectorAll("tbody tr")];
  let shown = 0;
  for (const row of rows) {
    const text = [...row.cells].map(cell => cell.textContent).join(" ").toLowerCase();
    row.hidden = !words.every(word => text.includes(word));
    shown += !row.hidden;
  }
  box.querySelector(".count").textContent = words.length ? `${shown} of ${rows.length}` : "";
}

for (const box of document.querySelectorAll(".table")) {
  const table = box.querySelector("table");
  [...table.tHead.rows[0].cells].forEach((header, column) => {
    header.querySelector("button").addEventListener("click", () => sort(table, column, header));
  });
  const input = box.querySelector("input");
  if (input) input.addEventListener("input", () => filter(box, input));
}

const tip = document.getElementById("tip");

function point(event) {
  const mark = event.target.closest(".drawing [aria-label]:not([aria-roledescription=axis])");
  tip.hidden = !mark || !mark.getAttribute("aria-label");
  if (tip.hidden) return;
  tip.textContent = mark.getAttribute("aria-label");
  const box = tip.getBoundingClientRect();
  const left = Math.min(event.clientX + 12, window.innerWidth - box.width - 8);
  const below = event.clientY + 16;
  const top = below + box.height > window.innerHeight ? event.clientY - box.height - 10 : below;
  tip.style.left = `${Math.max(4, left)}px`;
  tip.style.top = `${Math.max(4, top)}px`;
}

document.addEventListener("pointerover", point);
document.addEventListener("pointerdown", point);
document.addEventListener("scroll", () => {
  if (!document.querySelector(".drawing [aria-label]:hover")) tip.hidden = true;
}, {passive: true});

let folded = [];
window.addEventListener("beforeprint", () => {
  folded = [...document.querySelectorAll("details:not([open])")];
  for (const part of folded) part.open = true;
});
window.addEventListener("afterprint", () => {
  for (const part of folded) part.open = false;
});
