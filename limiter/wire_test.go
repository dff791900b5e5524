package limiter

import "testing"

func BenchmarkMessages(b *testing.B) {
	q, r := someQuestion(), someReply()
	q.requests, q.hops = nil, 0
	question, reply := q.appendBody(q.appendHead(nil)), r.append(nil)
	b.Run("question/append", func(b *testing.B) {
		b.ReportAllocs()
		buf := make([]byte, 0, 1024)
		for b.Loop() {
			buf = q.appendBody(q.appendHead(buf[:0]))
		}
	})
	b.Run("question/read", func(b *testing.B) {
		b.ReportAllocs()
		var have = *someQuestion()
		for b.Loop() {
			if have.read(question) != nil {
				b.Fatal()
			}
		}
	})
	b.Run("reply/append", func(b *testing.B) {
		b.ReportAllocs()
		buf := make([]byte, 0, 1024)
		for b.Loop() {
			buf = r.append(buf[:0])
		}
	})
	b.Run("reply/read", func(b *testing.B) {
		b.ReportAllocs()
		var have = *someReply()
		r.grants = nil
		reply = r.append(nil)
		for b.Loop() {
			if have.read(reply, 4, 3, 5) != nil {
				b.Fatal()
			}
		}
	})
}
