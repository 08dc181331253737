/* --- rates --------------------------------------------------------------- */

const LOOK_BACK = 300, WINDOW = 5;	/* seconds: of a chart, of a mean */

const tiles = [
	{ name: "Generated", unit: "tokens/s", of: (a, b, s) =>
	    (b.output_tokens - a.output_tokens) / s },
	{ name: "First token", unit: "ms", of: (a, b) =>
	    mean(b.ttft_ns - a.ttft_ns, b.first_tokens - a.first_tokens) },
	{ name: "Between tokens", unit: "ms", of: (a, b) =>
	    mean(b.itl_ns - a.itl_ns, b.later_tokens - a.later_tokens) },
	{ name: "Prefilled", unit: "tokens/s", of: (a, b, s) =>
	    (b.prompt_tokens - a.prompt_tokens) / s },
];
let samples = [];	/* { at, counters, shown: a number or null of each } */

function mean(ns, n) {
	return n > 0 ? ns * 1e-6 / n : null;
}

function sample(status) {
	const at = status.uptime_s, c = status.counters;
	const last = samples[samples.length - 1];

	if (last && (at <= last.at || c.steps < last.counters.steps))
		samples = [];		/* another daemon */
	const then = samples.find(s => s.at >= at - WINDOW);

	samples.push({ at, counters: c, shown: tiles.map(t =>
	    then ? t.of(then.counters, c, at - then.at) : null) });
	while (samples[0].at < at - LOOK_BACK - WINDOW)
		samples.shift();
}

function make_tiles() {
	for (const t of tiles) {
		const box = make("div", "tile");

		t.value = make("b");
		t.canvas = make("canvas");
		t.canvas.setAttribute("role", "img");
		box.append(make("span", "soft small", t.name), t.value,
		    t.canvas);
		$("tiles").append(box);
	}
}

/* A chart of one minute until there is more to show. */
const span_of = s => s < 60 ? 60 : s < 120 ? 120 : LOOK_BACK;

function draw_chart(t, k) {
	const [g, w, h] = canvas_of(t.canvas);
	const end = samples.length ? samples[samples.length - 1].at : 0;
	const span = span_of(end - (samples.length ? samples[0].at : 0));
	const x = s => w - (end - s.at) / span * w;
	const top = Math.max(1e-9, ...samples.map(s => s.shown[k] ?? 0));
	const y = v => h - 1.5 - v / top * (h - 14);
	let run = [];

	function flush() {
		if (run.length === 0)
			return;
		g.beginPath();
		run.forEach((s, i) => g[i ? "lineTo" : "moveTo"](x(s),
		    y(s.shown[k])));
		g.stroke();
		g.lineTo(x(run[run.length - 1]), h);
		g.lineTo(x(run[0]), h);
		g.globalAlpha = .13;
		g.fill();
		g.globalAlpha = 1;
		run = [];
	}
	g.fillStyle = paint.line;
	g.fillRect(0, h - 1, w, 1);
	g.strokeStyle = g.fillStyle = paint.used;
	g.lineWidth = 1.6;
	g.lineJoin = "round";
	for (const s of samples) {
		if (s.shown[k] === null)
			flush();
		else
			run.push(s);
	}
	flush();
	g.fillStyle = paint.soft;
	g.font = "11px system-ui, sans-serif";
	g.textAlign = "right";
	if (top > 1e-9)
		g.fillText("max " + short(top), w, 9);
	g.textAlign = "left";
	g.fillText(span / 60 + " min", 0, 9);
}

function draw_tiles() {
	const last = samples[samples.length - 1];

	tiles.forEach((t, k) => {
		const v = last ? last.shown[k] : null;
		const text = v === null ? "\u2013" : short(v);

		if (t.text !== text) {
			t.text = text;
			t.value.replaceChildren(text + " ",
			    make("span", "", t.unit));
			t.canvas.setAttribute("aria-label", t.name +
			    " over the last five minutes, now " + text + " " +
			    t.unit);
		}
		draw_chart(t, k);
	});
}

