"use strict";
const number = text => {
  /* A p-value may be "less than 1e-99". */
  const value = parseFloat(text.replace(/,|less than /g, ""));
  return Number.isNaN(value) ? Infinity : value;
};
for (const table of document.querySelectorAll("table[data-sorts]")) {
  const body = table.tBodies[0], heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const sign = head.getAttribute("aria-sort") === "descending" ? 1 : -1;
      heads.forEach(other => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", sign === 1 ? "ascending" : "descending");
      const key = row => row.cells[column].textContent;
      const words = head.align === "left";
      const compare = (a, b) => words ? key(a).localeCompare(key(b)) : number(key(a)) - number(key(b));
      body.append(...[...body.rows].sort((a, b) => sign * compare(a, b)));
    });
  });
  if (body.rows.length < 20) continue;
  const label = document.createElement("label"), input = document.createElement("input");
  input.type = "search";
  label.append("Show rows that contain ", input);
  table.parentNode.before(label);
  input.addEventListener("input", () => {
    const wanted = input.value.toLowerCase();
    for (const row of body.rows) {
      row.hidden = !row.textContent.toLowerCase().includes(wanted);
    }
  });
}
