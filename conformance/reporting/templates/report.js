// Filter by text; opens what an address points to. The page is whole without it.
(() => {
  const words = { "✗": "fail", "‼": "error", "≈": "warning", "○": "unsupported", "·": "not-run" };
  const spelled = text => text.replace(/[✗‼≈○·]/g, sign => " " + words[sign] + " ").toLowerCase();
  const form = document.querySelector("form"), input = form.querySelector("input"), said = form.querySelector("output");
  let items;
  const read = () => [...document.querySelectorAll(".case, .failure")].map(box => {
    const rows = box.matches(".case") ? [...box.querySelectorAll("li, tbody tr")] : [];
    const clone = box.cloneNode(true);
    clone.querySelectorAll("ul, table").forEach(part => rows.length && part.remove());
    return { box, head: spelled(clone.textContent), rows: rows.map(row => ({ row, text: spelled(row.textContent) })) };
  });
  const filter = () => {
    items ??= read();
    const wanted = spelled(input.value).split(/\s+/).filter(Boolean);
    let shown = 0, all = 0;
    for (const { box, head, rows } of items) {
      let any = rows.length ? 0 : +wanted.every(word => head.includes(word));
      for (const { row, text } of rows) {
        const hit = wanted.every(word => text.includes(word) || head.includes(word));
        row.hidden = !hit;
        any += hit;
      }
      box.hidden = !any;
      shown += rows.length && any;
      all += rows.length;
    }
    for (const box of document.querySelectorAll(".topic")) {
      box.hidden = !box.querySelector(".case:not([hidden])");
      if (wanted.length) box.open = true;
    }
    said.textContent = wanted.length ? `${shown} of ${all} cases` : "";
  };
  // An address names a part of the page, or a case and its point: #topic/case[axis=value].
  const open = () => {
    const name = decodeURIComponent(location.hash.slice(1)), [, written, point] = name.match(/^([^[]*)\[(.*)\]$/) ?? [];
    let target = document.getElementById(name);
    if (!target && written) {
      const rows = document.getElementById(written)?.querySelectorAll("li, tbody tr") ?? [];
      target = [...rows].find(row => row.firstElementChild.textContent === point);
    }
    document.querySelector(".marked")?.classList.remove("marked");
    target?.classList.add("marked");
    for (let at = target; at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true;
    target?.scrollIntoView();
  };
  form.hidden = false;
  form.addEventListener("submit", event => event.preventDefault());
  let timer;
  input.addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(filter, 120); });
  addEventListener("hashchange", open);
  open();
})();
