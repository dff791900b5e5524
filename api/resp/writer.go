package resp

import "strconv"

// writer composes replies.
type writer struct {
	b     []byte
	resp3 bool
}

// failure is an error reply, without the dash in front. The empty one is none.
type failure string

func (w *writer) line(kind byte, n int64) {
	w.b = append(strconv.AppendInt(append(w.b, kind), n, 10), "\r\n"...)
}

// integer writes a number.
func (w *writer) integer(n int64) { w.line(':', n) }

// simple writes a status. It must have no control characters.
func (w *writer) simple(text string) { w.b = append(append(append(w.b, '+'), text...), "\r\n"...) }

// text writes a string of any bytes.
func (w *writer) text(s string) {
	w.line('$', int64(len(s)))
	w.b = append(append(w.b, s...), "\r\n"...)
}

// bytes writes a string of any bytes.
func (w *writer) bytes(s []byte) {
	w.line('$', int64(len(s)))
	w.b = append(append(w.b, s...), "\r\n"...)
}

// fail writes an error. Control characters become blanks.
func (w *writer) fail(f failure) {
	w.b = append(w.b, '-')
	for i := range len(f) {
		c := f[i]
		if c < ' ' || c == 0x7f {
			c = ' '
		}
		w.b = append(w.b, c)
	}
	w.b = append(w.b, "\r\n"...)
}

// array begins an array of n replies, which the caller writes next.
func (w *writer) array(n int) { w.line('*', int64(n)) }

// set begins a set; in RESP2, which has no sets, an array.
func (w *writer) set(n int) {
	if w.resp3 {
		w.line('~', int64(n))
		return
	}
	w.array(n)
}

// null writes that there is nothing.
func (w *writer) null() {
	if w.resp3 {
		w.b = append(w.b, "_\r\n"...)
		return
	}
	w.b = append(w.b, "$-1\r\n"...)
}

// boolean writes true or false: in RESP2, 1 or 0.
func (w *writer) boolean(v bool) {
	switch {
	case w.resp3 && v:
		w.b = append(w.b, "#t\r\n"...)
	case w.resp3:
		w.b = append(w.b, "#f\r\n"...)
	case v:
		w.integer(1)
	default:
		w.integer(0)
	}
}

// mapOf begins a map of n names and values, which the caller writes in turn: in
// RESP2, an array of 2n.
func (w *writer) mapOf(n int) {
	if w.resp3 {
		w.line('%', int64(n))
		return
	}
	w.array(2 * n)
}

// fields is a map whose size is not known before it is written.
type fields struct {
	w     *writer
	start int
	n     int
}

// fields begins a map.
func (w *writer) fields() fields { return fields{w: w, start: len(w.b)} }

// name writes the name of the next value.
func (f *fields) name(name string) {
	f.n++
	f.w.text(name)
}

// integer writes a field that is a number.
func (f *fields) integer(name string, n int64) {
	f.name(name)
	f.w.integer(n)
}

// text writes a field that is text.
func (f *fields) text(name, value string) {
	f.name(name)
	f.w.text(value)
}

// boolean writes a field that is true or false.
func (f *fields) boolean(name string, v bool) {
	f.name(name)
	f.w.boolean(v)
}

// end ends the map: it inserts how many fields there are.
func (f *fields) end() {
	w := f.w
	end := len(w.b)
	w.mapOf(f.n)

	// mapOf has appended the head, which belongs in front.
	var head [24]byte
	n := copy(head[:], w.b[end:])
	copy(w.b[f.start+n:], w.b[f.start:end])
	copy(w.b[f.start:], head[:n])
}
