/* --- beginning ----------------------------------------------------------- */

read_colours();
make_tiles();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
	read_colours();
	for (const [id, row] of rows)
		row.li.style.setProperty("--c", paint.of(id));
	draw();
});
addEventListener("resize", draw);
look();
