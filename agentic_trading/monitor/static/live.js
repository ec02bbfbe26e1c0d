// Puts the live part that the server sends in place of the one in the page. Without script, pages are reloaded by hand.
const region = document.querySelector("[data-live]");
const lamp = document.querySelector(".live");
if (region && "EventSource" in window) {
  const source = new EventSource(region.dataset.live);
  const say = (text, isOn) => { lamp.textContent = text; lamp.dataset.on = isOn ? "1" : "0"; };
  source.addEventListener("open", () => say("live", true));
  source.addEventListener("error", () => say(
    source.readyState === EventSource.CLOSED ? "not live, reload the page to try again" : "connection lost, trying again", false));
  source.addEventListener("part", (event) => {
    const focused = document.activeElement;
    if (document.hidden || (region.contains(focused) && focused.matches("input, select"))) return;
    const open = new Set([...region.querySelectorAll("details[open][id]")].map((each) => each.id));
    const part = new DOMParser().parseFromString(event.data, "text/html"); // its scripts never run
    region.replaceChildren(...part.body.childNodes);
    for (const id of open) document.getElementById(id)?.setAttribute("open", "");
    if (focused?.id && document.activeElement === document.body) document.getElementById(focused.id)?.focus({ preventScroll: true });
  });
}
