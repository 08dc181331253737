/* --- the live stream ----------------------------------------------------- */

let frame = null, looking = null;

function draw() {
	if (!frame)
		return;
	const s = frame.status;

	draw_requests(frame.requests || [], frame.n_requests || 0);
	draw_tiles();
	draw_ranks(s, frame.pages);
}

function show_state(state, why = "") {
	$("state").className = state;
	$("state").title = why;
	say($("state"), state);
	document.body.classList.toggle("stale", state === "offline");
}

function take(f) {
	const s = f.status, n = s.tp || 1, d = s.dcp_size || 1;

	frame = f;
	show_state(s.state);
	say($("about"), [s.model, n + (n > 1 ? " ranks" : " rank"),
	    d > 1 ? `context over ${d}` : "", s.state === "loading" ? "" :
	    `${s.running || 0} running, ${s.waiting || 0} waiting`,
	    "up " + lasting(s.uptime_s)].filter(x => x).join(" \u00b7 "));
	document.title = (s.model ? s.model + " \u2013 " : "") + "dcpd";
	if (s.counters)
		sample(s);
	take_pages(f.pages, s.uptime_s);
	if (s.model !== suggested)
		suggest(s.model);
	draw();
}

/* Only while someone looks: a hidden tab asks for nothing. */
async function look() {
	let wait = 500;

	while (!document.hidden) {
		const stop = looking = new AbortController();
		let reason = "the connection ended";

		try {
			const res = await fetched("live", {
				signal: stop.signal });

			if (!res.ok)
				throw new Error(await why(res));
			for await (const data of events_of(res)) {
				wait = 500;
				take(JSON.parse(data));
			}
		} catch (e) {
			if (stop.signal.aborted)
				break;
			reason = e.message;
		}
		show_state("offline", reason);
		await new Promise(r => setTimeout(r, wait));
		wait = Math.min(wait * 2, 8000);
	}
	looking = null;
}

document.addEventListener("visibilitychange", () => {
	if (document.hidden && looking)
		looking.abort();
	else if (!document.hidden && !looking)
		look();
});

