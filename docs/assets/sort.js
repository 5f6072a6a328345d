// A click on a heading sorts its table by that column, numbers as numbers.
document.addEventListener("click", (event) => {
  const head = event.target.closest("th");
  if (!head) return;
  const body = head.closest("table").tBodies[0], column = head.cellIndex;
  const down = (head.dataset.sorted = head.dataset.sorted === "up" ? "down" : "up") === "down";
  const key = (row) => row.cells[column].textContent.trim();
  const order = (a, b) => (parseFloat(a) - parseFloat(b)) || a.localeCompare(b);
  const rows = [...body.rows].sort((a, b) => order(key(a), key(b)));
  body.append(...(down ? rows.reverse() : rows));
});
