"use strict";

/* --- small things -------------------------------------------------------- */

const $ = id => document.getElementById(id);

function make(tag, cls, text) {
	const e = document.createElement(tag);

	if (cls)
		e.className = cls;
	if (text !== undefined)
		e.textContent = text;
	return e;
}

/* Only what changed: a screen reader and a selection stay where they are. */
function say(e, text) {
	if (e.textContent !== text)
		e.textContent = text;
}

const count = n => Math.round(n).toLocaleString("en");

function short(n) {
	return n < 10 ? n.toFixed(1) : n < 10000 ? count(n) :
	    n < 1e6 ? (n / 1e3).toFixed(0) + "k" : (n / 1e6).toFixed(1) + "M";
}

function lasting(s) {
	return s < 60 ? s.toFixed(s < 10 ? 1 : 0) + " s" :
	    s < 3600 ? Math.floor(s / 60) + " min" :
	    s < 172800 ? Math.floor(s / 3600) + " h" :
	    Math.floor(s / 86400) + " days";
}

/* Neighbours in number are far apart in hue; who is near, in tone. */
const hue = id => Math.round(id * 137.508) % 360;
const TONES = [0, -9, 8, -4, 12];

/* Client and its request: short, and unlike others'. */
const name_of = id => "#" + Math.floor(id / 2 ** 32) + "." + id % 2 ** 32;

const css = name =>
    getComputedStyle(document.documentElement).getPropertyValue(name).trim();

let paint = {};		/* colours of the scheme, read once */
function read_colours() {
	for (const n of ["track", "cached", "warn", "shared", "soft", "line",
	    "used", "tone", "chroma"])
		paint[n] = css("--" + n);
	paint.of = id => `oklch(${+paint.tone + TONES[id % 5]}% ` +
	    `${paint.chroma} ${hue(id)})`;
}

/* A canvas as large as its pixels on the screen, in units of CSS. */
function canvas_of(c) {
	const r = devicePixelRatio || 1, w = c.clientWidth, h = c.clientHeight;
	const g = c.getContext("2d");

	if (c.width !== Math.round(w * r) || c.height !== Math.round(h * r)) {
		c.width = Math.round(w * r);
		c.height = Math.round(h * r);
	}
	g.setTransform(r, 0, 0, r, 0, 0);
	g.clearRect(0, 0, w, h);
	return [g, w, h];
}

