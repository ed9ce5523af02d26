// Filters what failed by words; without it the page has all of it.
for (const section of document.querySelectorAll(".searched")) {
  const items = [...section.querySelectorAll(".found")];
  if (items.length < 4) continue;
  const input = Object.assign(document.createElement("input"), {type: "search", placeholder: "Search: words, a chunk, an outcome"});
  const count = Object.assign(document.createElement("span"), {className: "note"});
  const line = Object.assign(document.createElement("p"), {className: "search"});
  input.setAttribute("aria-label", input.placeholder);
  count.setAttribute("role", "status");
  line.append(input, count);
  section.querySelector("h2").after(line);
  input.addEventListener("input", () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const item of items) item.hidden = !words.every((word) => item.textContent.toLowerCase().includes(word));
    for (const details of section.querySelectorAll("details")) details.open = words.length > 0;
    count.textContent = words.length ? `${items.filter((item) => !item.hidden).length} of ${items.length}` : "";
  });
}
