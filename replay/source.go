package replay

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
)

// Input is a log to read.
type Input struct {
	Name string
	io.Reader
}

// lineReader splits an input into lines. It returns only the beginning of a
// line longer than maxLine.
type lineReader struct {
	reader    *bufio.Reader
	line      []byte // valid until the next call
	truncated bool   // the line was longer
}

// newLineReader reads from in, and decompresses it if it begins with the gzip magic number.
func newLineReader(in io.Reader) (*lineReader, error) {
	r := bufio.NewReaderSize(in, maxLine)
	magic, err := r.Peek(2)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if !bytes.Equal(magic, []byte{0x1f, 0x8b}) {
		return &lineReader{reader: r}, nil
	}

	unzipped, err := gzip.NewReader(r)
	if err != nil {
		return nil, fmt.Errorf("gzip header: %w", err)
	}

	return &lineReader{reader: bufio.NewReaderSize(unzipped, maxLine)}, nil
}

// readLine reads a line into l.line, without the newline. At the end of the
// input it returns io.EOF.
func (l *lineReader) readLine() error {
	line, err := l.reader.ReadSlice('\n')
	l.truncated = errors.Is(err, bufio.ErrBufferFull)
	if l.truncated {
		// Reading the ignored rest of the line will reuse the buffer.
		line = bytes.Clone(line)
		for errors.Is(err, bufio.ErrBufferFull) {
			_, err = l.reader.ReadSlice('\n')
		}
	}

	if err != nil && !(errors.Is(err, io.EOF) && len(line) > 0) {
		return err
	}

	l.line = bytes.TrimSuffix(line, []byte("\n"))
	return nil
}
