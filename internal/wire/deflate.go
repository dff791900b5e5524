package wire

import (
	"bytes"
	"compress/flate"
	"errors"
	"fmt"
	"io"
)

// Deflate appends content to b, compressed.
func Deflate(b, content []byte) []byte {
	out := bytes.NewBuffer(b)
	w, _ := flate.NewWriter(out, flate.BestSpeed) // the level is valid
	_, _ = w.Write(content)                       // a bytes.Buffer takes everything
	_ = w.Close()
	return out.Bytes()
}

// Inflate is the inverse of Deflate, for content of at most bound bytes.
func Inflate(b []byte, bound int) ([]byte, error) {
	in := bytes.NewReader(b)

	// One byte beyond the bound tells content that is too long from content
	// that just fits.
	content, err := io.ReadAll(io.LimitReader(flate.NewReader(in), int64(bound)+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("decompress: %w", err)
	case len(content) > bound:
		return nil, fmt.Errorf("decompress: more than %d bytes", bound)
	case in.Len() > 0:
		return nil, errors.New("decompress: data after the end")
	}
	return content, nil
}
