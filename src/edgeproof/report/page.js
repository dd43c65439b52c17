"use strict";
for (const button of document.querySelectorAll("button[data-source]")) {
  button.addEventListener("click", () => {
    const text = document.getElementById(button.dataset.source).textContent;
    const name = button.dataset.name;
    const csv = name.endsWith(".csv");
    const blob = new Blob([csv ? JSON.parse(text) : text], { type: csv ? "text/csv" : "application/json" });
    const link = document.createElement("a");
    link.href = URL.createObjectURL(blob);
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  });
}
let folded = [];
addEventListener("beforeprint", () => {
  folded = [...document.querySelectorAll("details:not([open])")].filter((d) => !d.querySelector(".bars"));
  for (const d of folded) d.open = true;
});
addEventListener("afterprint", () => {
  for (const d of folded) d.open = false;
});
