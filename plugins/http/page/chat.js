/* --- chat ---------------------------------------------------------------- */

let turns = [], answering = null, suggested, model;

const TRIES = {		/* what the embedded model was trained on */
	"dcp-tiny": ["Ann has 12 pears. Ben gives Ann 13 more. " +
	    "How many pears does Ann have now?"],
};

function suggest(name) {
	const box = make("div", "tries"), tries = TRIES[name] || [];

	suggested = name;
	if ($("log").firstChild)
		return;
	box.append(make("p", "soft", "Ask " + (name || "the model") +
	    (tries.length ? " something, for example:" : " something.")));
	for (const t of tries) {
		const b = make("button", "button", t);

		b.type = "button";
		b.onclick = () => ask(t);
		box.append(b);
	}
	$("log").append(box);
}

function near_end() {
	const l = $("log");

	return l.scrollHeight - l.scrollTop - l.clientHeight < 40;
}

/* Adds to the log; who has scrolled up is left there. */
function put(where, node) {
	const follow = near_end();

	where.append(node);
	if (follow)
		$("log").scrollTop = $("log").scrollHeight;
}

function problem(text) {
	put($("log"), make("p", "problem", text));
}

async function model_name() {
	if (!model) {
		const res = await fetched("v1/models");
		const list = res.ok ? (await res.json()).data : [];

		model = list && list.length ? list[0].id : "";
	}
	return model;
}

async function why(res) {
	const text = await res.text();

	try {
		const e = JSON.parse(text).error;

		return e.message || String(e);
	} catch (e) {
		return text || "status " + res.status;
	}
}

/* The answer as it comes: thoughts folded away, then what it says. */
function answer_box() {
	const box = make("div", "said-by-model"), o = {
		box, thoughts: null, text: make("span"), said: "", first: 0,
		last: 0, usage: null,
	};

	o.think = t => {
		if (!o.thoughts) {
			const d = make("details");

			d.open = true;
			d.append(make("summary", "", "Reasoning"));
			o.thoughts = make("span");
			d.append(o.thoughts);
			box.prepend(d);
		}
		put(o.thoughts, document.createTextNode(t));
	};
	o.say = t => {
		o.said += t;
		put(o.text, document.createTextNode(t));
	};
	box.append(o.text);
	put($("log"), box);
	return o;
}

function take_chunk(o, chunk) {
	if (chunk.error)
		throw new Error(chunk.error.message || "it failed");
	if (chunk.usage)
		o.usage = chunk.usage;
	for (const c of chunk.choices || []) {
		const d = c.delta || {};
		const thought = d.reasoning_content ?? d.reasoning;

		if (thought || d.content || d.tool_calls) {
			o.last = performance.now();
			o.first = o.first || o.last;
		}
		if (thought)
			o.think(thought);
		if (d.content)
			o.say(d.content);
		for (const t of d.tool_calls || [])
			o.say((t.function.name ? t.function.name + " " : "") +
			    (t.function.arguments || ""));
	}
}

function speed(o, began) {
	const n = o.usage ? o.usage.completion_tokens : 0;
	const s = (o.last - o.first) / 1000;

	say($("speed"), !o.first ? "" : `first token ${short(o.first -
	    began)} ms` + (n ? `, ${count(n)} tokens` : "") +
	    (n > 1 && s > 0 ? `, ${short((n - 1) / s)} tokens/s` : ""));
}

async function stream(signal) {
	const began = performance.now();
	const res = await fetched("v1/chat/completions", {
		method: "POST", signal,
		headers: { "Content-Type": "application/json" },
		body: JSON.stringify({
			model: await model_name(), messages: turns,
			stream: true, stream_options: { include_usage: true },
		}),
	});

	if (!res.ok)
		throw new Error(await why(res));
	const o = answer_box();

	try {
		for await (const data of events_of(res))
			if (data !== "[DONE]")
				take_chunk(o, JSON.parse(data));
	} finally {
		if (o.said)
			turns.push({ role: "assistant", content: o.said });
		speed(o, began);
	}
}

function set_answering(ctl) {
	answering = ctl;
	say($("send"), ctl ? "Stop" : "Send");
	$("send").classList.toggle("stop", ctl !== null);
	$("send").classList.toggle("main", ctl === null);
	$("log").setAttribute("aria-busy", String(ctl !== null));
	$("anew").hidden = ctl !== null || turns.length === 0;
}

async function ask(text) {
	const ctl = new AbortController(), n = turns.length;

	if (answering)
		return;
	document.querySelectorAll(".tries, .problem").forEach(e => e.remove());
	turns.push({ role: "user", content: text });
	put($("log"), make("div", "said-by-user", text));
	$("log").scrollTop = $("log").scrollHeight;
	say($("speed"), "");
	set_answering(ctl);
	try {
		await stream(ctl.signal);
	} catch (e) {
		if (!ctl.signal.aborted)
			problem(e.message);
	}
	if (turns.length === n + 1)
		turns.pop();	/* no answer: it may be asked again */
	set_answering(null);
}

$("form").onsubmit = e => {
	const text = $("ask").value.trim();

	e.preventDefault();
	if (answering)
		return answering.abort();
	if (text === "")
		return;
	$("ask").value = "";
	ask(text);
};
$("send").onclick = e => {
	/* The box may be empty then, and the form would not be sent. */
	if (answering) {
		e.preventDefault();
		answering.abort();
	}
};
$("ask").onkeydown = e => {
	if (e.key === "Enter" && !e.shiftKey && !e.isComposing) {
		e.preventDefault();
		if (!answering)
			$("form").requestSubmit();
	} else if (e.key === "Escape" && answering)
		answering.abort();
};
$("anew").onclick = () => {
	turns = [];
	$("log").replaceChildren();
	say($("speed"), "");
	suggest(suggested);
	set_answering(null);
	$("ask").focus();
};

