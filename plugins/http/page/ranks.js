/* --- ranks and pages ----------------------------------------------------- */

const COOL = 20;	/* seconds in which a cached page loses its colour */
let cells = [];		/* { owner, was: who had it last, at } */
let chosen = null;	/* id of the request that stands out */

function take_pages(map, at) {
	let i = 0;

	if (!map)
		return;
	if (cells.length !== map.cells)
		cells = Array.from({ length: map.cells },
		    () => ({ owner: 0, was: 0, at: 0 }));
	for (let k = 0; k + 1 < map.runs.length; k += 2)
		for (let n = map.runs[k + 1]; n > 0; n--) {
			const c = cells[i++], owner = map.runs[k];

			if (c.owner > 0)
				c.was = c.owner;
			if (c.owner !== owner)
				c.at = at;
			if (owner === 0)
				c.was = 0;
			c.owner = owner;
		}
}

/*
 * A page that its request has left cools down. A pinned one has a foot: as
 * requests have all hues, no colour would tell it from them.
 */
function colour_of(c, at) {
	const warm = 1 - (at - c.at) / COOL;

	if (c.owner > 0)
		return [paint.of(c.owner), 1, null];
	if (c.owner === -2)
		return [paint.shared, 1, null];
	if (c.owner === -3)
		return [paint.cached, 1, null, paint.warn];
	if (c.owner === -1)
		return [paint.cached, 1, c.was > 0 && warm > 0 ?
		    [paint.of(c.was), warm * .45] : null];
	return null;
}

/* Of a pool with more cells than pixels, each pixel shows one. */
function draw_strip(canvas, at) {
	const [g, w, h] = canvas_of(canvas);
	const n = cells.length, gap = w / n >= 5 ? 1 : 0;

	for (let i = 0, end; i < n; i = end) {
		const c = cells[i], col = colour_of(c, at);

		end = i + 1;
		/* Neighbours that look alike are one box. */
		while (!gap && end < n && cells[end].owner === c.owner &&
		    cells[end].at === c.at && cells[end].was === c.was)
			end++;
		if (!col)
			continue;
		const x = i * w / n, dx = (end - i) * w / n - gap;
		const dim = chosen === null || c.owner === chosen ? 1 : .18;

		g.globalAlpha = col[1] * dim;
		g.fillStyle = col[0];
		g.fillRect(x, 0, dx, h);
		if (col[3]) {
			g.fillStyle = col[3];
			g.fillRect(x, h / 2, dx, h / 2);
		}
		if (col[2]) {
			g.globalAlpha = col[2][1] * dim;
			g.fillStyle = col[2][0];
			g.fillRect(x, 0, dx, h);
		}
	}
	g.globalAlpha = 1;
}

function part(stack, cls, share) {
	const i = make("i", cls);

	i.style.width = (share * 100).toFixed(3) + "%";
	stack.append(i);
	return i;
}

let rank_rows = [];
function make_ranks(ranks) {
	rank_rows = ranks.map(r => {
		const li = make("li"), row = {
			canvas: make("canvas"), stack: make("div", "stack"),
			num: make("span", "num small soft"),
		};

		row.canvas.setAttribute("role", "img");
		row.pinned = part(row.stack, "c-pinned", 0);
		row.used = part(row.stack, "c-used", 0);
		row.cached = part(row.stack, "c-cached", 0);
		row.stack.setAttribute("aria-hidden", "true");
		li.append(make("span", "small soft", "rank " + r.rank),
		    row.canvas, row.stack, row.num);
		row.li = li;
		return row;
	});
	$("ranks").replaceChildren(...rank_rows.map(r => r.li));
	$("ranks").classList.toggle("many", ranks.length > 16);
	$("ranks").tabIndex = ranks.length > 16 ? 0 : -1;	/* it scrolls */
}

function draw_ranks(status, map) {
	const ranks = status.ranks || [], at = status.uptime_s;

	if (rank_rows.length !== ranks.length)
		make_ranks(ranks);
	ranks.forEach((r, i) => {
		const row = rank_rows[i], all = r.pages_total || 1;
		const pinned = r.pages_pinned / all;
		const used = r.pages_used / all - pinned;
		const cached = r.pages_cached / all;
		const percent = v => Math.round(v * 100) + " %";

		row.pinned.style.width = (pinned * 100).toFixed(3) + "%";
		row.used.style.width = (used * 100).toFixed(3) + "%";
		row.cached.style.width = (cached * 100).toFixed(3) + "%";
		say(row.num, count(r.tokens) + " tokens");
		row.stack.title = row.canvas.title = (pinned > 0 ?
		    `${percent(pinned)} pinned, ` : "") +
		    `${percent(used)} used, ${percent(cached)} cached, ` +
		    `${percent(1 - pinned - used - cached)} free`;
		row.canvas.setAttribute("aria-label", "Rank " + r.rank + ": " +
		    row.stack.title);
		draw_strip(row.canvas, at);
	});
	if (ranks.length === 0)
		return say($("pool-note"), loading_text(status));
	const d = status.dcp_size || status.dcp || 1, p = ranks[0];

	say($("pool-note"), `${count(p.pages_total)} pages of 64 tokens: ` +
	    (p.pages_pinned > 0 ? `${count(p.pages_pinned)} pinned, ` : "") +
	    `${count(p.pages_used - p.pages_pinned)} used, ` +
	    `${count(p.pages_cached)} cached, ` +
	    `${count(p.pages_total - p.pages_used - p.pages_cached)} free. ` +
	    (d > 1 ? `Each rank holds ${64 / d} tokens of every page.` :
	    "Each rank holds all tokens.") + (map && map.pages_per_cell > 1 ?
	    ` One page in ${map.pages_per_cell} is drawn.` : ""));
}

function loading_text(status) {
	const of = status.load_bytes, n = status.loaded_bytes;

	return "The model is being loaded" + (of > 0 ? `: ${(n / 1e9)
	    .toFixed(1)} of ${(of / 1e9).toFixed(1)} GB.` : ".");
}

