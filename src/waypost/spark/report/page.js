// Quick tooltips. Without this the browser shows the same words, only later.
const tip = document.createElement("div");
tip.id = "tip";
tip.hidden = true;
document.body.append(tip);
for (const title of document.querySelectorAll(".hit > title")) {
  title.parentNode.dataset.tip = title.textContent;
  title.remove();
}
function show(event) {
  const hit = event.target.closest && event.target.closest(".hit");
  tip.hidden = !hit;
  if (!hit) return;
  tip.textContent = hit.dataset.tip;
  const { width, height } = tip.getBoundingClientRect();
  const left = event.clientX + 14 + width > innerWidth ? event.clientX - 14 - width : event.clientX + 14;
  tip.style.transform = `translate(${Math.max(4, left)}px, ${Math.max(4, event.clientY - height - 10)}px)`;
}
document.addEventListener("pointermove", show);
document.addEventListener("pointerdown", show);
addEventListener("scroll", () => { tip.hidden = true; }, { passive: true });
