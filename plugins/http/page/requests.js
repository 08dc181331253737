/* --- requests ------------------------------------------------------------ */

const SHOWN = 50;
let rows = new Map();	/* id -> row */

function make_row(r) {
	const row = {
		li: make("li"), button: make("button", "", name_of(r.id) + " "),
		state: make("span", "soft small"), num: make("span",
		    "num small soft"), stack: make("div", "stack"),
		said: make("span", "said small soft"),
	};

	row.li.style.setProperty("--c", paint.of(r.id));
	row.button.type = "button";
	row.button.setAttribute("aria-pressed", "false");
	row.button.title = `Request ${r.id}: show its pages`;
	row.button.append(row.state);
	row.button.onclick = () => {
		chosen = chosen === r.id ? null : r.id;
		draw();
	};
	row.stack.setAttribute("aria-hidden", "true");
	row.cached = part(row.stack, "c-cached", 0);
	row.pre = part(row.stack, "", 0);
	row.pre.style.opacity = ".45";
	row.gen = part(row.stack, "", 0);
	row.li.append(row.button, row.stack, row.num, row.said);
	return row;
}

function draw_row(row, r) {
	const cached = Math.min(r.cached, r.prompt);
	const pre = Math.max(0, r.prefilled - cached), done = cached + pre +
	    r.generated;
	const to_do = r.prompt - cached - pre + r.max_tokens - r.generated;
	/* What may come is often the rest of the context: cut, and faded. */
	const cut = to_do > 2 * (r.prompt + r.generated);
	const all = done + (cut ? 2 * (r.prompt + r.generated) : to_do) || 1;

	say(row.state, r.state);
	say(row.num, lasting(r.age_s));
	row.cached.style.width = cached / all * 100 + "%";
	row.pre.style.width = pre / all * 100 + "%";
	row.gen.style.width = r.generated / all * 100 + "%";
	row.stack.classList.toggle("more", cut);
	row.button.setAttribute("aria-pressed", String(chosen === r.id));
	say(row.said, r.state === "text" ? "being read" :
	    (cached ? count(cached) + " cached, " : "") +
	    `${count(cached + pre)} of ${count(r.prompt)} prompt tokens, ` +
	    `${count(r.generated)} generated, up to ` +
	    `${count(r.max_tokens - r.generated)} left` +
	    (r.preempted ? `; gave way ${r.preempted} times` : ""));
}

function draw_requests(requests, n) {
	const ids = new Set(requests.map(r => r.id));

	if (chosen !== null && !ids.has(chosen))
		chosen = null;
	for (const [id, row] of rows)
		if (!ids.has(id)) {
			row.li.remove();
			rows.delete(id);
		}
	for (const r of requests.slice(0, SHOWN)) {
		let row = rows.get(r.id);

		if (!row) {
			row = make_row(r);
			rows.set(r.id, row);
			$("list").append(row.li);
		}
		draw_row(row, r);
	}
	$("none").hidden = n > 0 && n <= rows.size;
	say($("none"), n === 0 ? "Nothing runs." : `And ${n - rows.size} ` +
	    "more.");
}

