"use strict";
/* The page What if: the answer comes into the page; without this script the form loads the page with it. */
addEventListener("DOMContentLoaded", () => {
  const form = document.getElementById("what-if"), result = document.getElementById("result");
  const busy = document.getElementById("busy"), problem = document.getElementById("problem"), button = form.querySelector("button");
  form.addEventListener("submit", async event => {
    event.preventDefault();
    button.disabled = true;
    busy.hidden = false;
    problem.hidden = true;
    try {
      const answer = await fetch(form.action, {method: "POST", body: new URLSearchParams(new FormData(form)), headers: {"X-Themis": "1"}, credentials: "same-origin"});
      if (answer.status === 401) { location.reload(); return; }
      const text = await answer.text();
      if (answer.ok) Themis.fill(result, text);
      else { problem.textContent = text; problem.hidden = false; }
    } catch {
      problem.textContent = "The service does not answer; try again.";
      problem.hidden = false;
    } finally {
      busy.hidden = true;
      button.disabled = false;
    }
  });
});
