/* --- asking the server --------------------------------------------------- */

let key = sessionStorage.getItem("dcpd-key") || "";
let asked = null;	/* the promise of a key being typed */

function want_key() {
	if (!asked)
		asked = new Promise(done => {
			$("key-form").onsubmit = e => {
				e.preventDefault();
				key = $("key-in").value.trim();
				$("key-in").value = "";
				sessionStorage.setItem("dcpd-key", key);
				asked = null;
				$("key").close();
				done();
			};
			$("key").oncancel = e => e.preventDefault();
			$("key").showModal();
		});
	return asked;
}

async function fetched(path, options = {}) {
	for (;;) {
		const used = key;
		const res = await fetch(path, { ...options, headers: {
			...options.headers,
			...(key && { Authorization: "Bearer " + key }),
		} });

		$("forget").hidden = key === "";
		if (res.status !== 401)
			return res;
		if (used === key)
			await want_key();
	}
}

$("forget").onclick = () => {
	sessionStorage.removeItem("dcpd-key");
	location.reload();
};

/* Server-sent events of an answer: their data, one after another. */
async function* events_of(res) {
	const reader = res.body.pipeThrough(new TextDecoderStream())
	    .getReader();
	let text = "", data = [];

	for (;;) {
		const { value, done } = await reader.read();

		if (done)
			return;
		const lines = (text + value).split(/\r?\n/);

		text = lines.pop();
		for (const l of lines) {
			if (l.startsWith("data:"))
				data.push(l.slice(5).replace(/^ /, ""));
			else if (l === "" && data.length > 0) {
				yield data.join("\n");
				data = [];
			}
		}
	}
}

