package main

import (
	"encoding/csv"
	"fmt"
	"os"
	"slices"
	"strconv"
)

// point is a point of a line: the median of the measurements, and their minimum and maximum.
type point struct {
	line           string
	x              float64
	y, least, most float64
}

// pointOf returns the point for the measurements of several rounds.
func pointOf(line string, x float64, values []float64) point {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	median := sorted[n/2]
	if n%2 == 0 {
		median = (sorted[n/2-1] + sorted[n/2]) / 2
	}
	return point{line: line, x: x, y: median, least: sorted[0], most: sorted[n-1]}
}

var columns = []string{"line", "x", "median", "least", "most"}

func writePoints(path string, points []point) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}

	w := csv.NewWriter(f)
	rows := [][]string{columns}
	for _, p := range points {
		row := []string{p.line}
		for _, v := range []float64{p.x, p.y, p.least, p.most} {
			row = append(row, strconv.FormatFloat(v, 'g', 6, 64))
		}
		rows = append(rows, row)
	}

	if err := w.WriteAll(rows); err != nil {
		f.Close()
		return fmt.Errorf("write %s: %w", path, err)
	}

	return f.Close()
}

func readPoints(path string) ([]point, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}

	defer f.Close()

	r := csv.NewReader(f)
	r.FieldsPerRecord = len(columns)
	rows, err := r.ReadAll()
	if err != nil || len(rows) < 2 || !slices.Equal(rows[0], columns) {
		return nil, fmt.Errorf("read %s: no points, or other columns than %v: %w", path, columns, err)
	}

	var points []point
	for i, row := range rows[1:] {
		p := point{line: row[0]}
		for j, v := range []*float64{&p.x, &p.y, &p.least, &p.most} {
			if *v, err = strconv.ParseFloat(row[j+1], 64); err != nil {
				return nil, fmt.Errorf("read %s: row %d: %w", path, i+2, err)
			}
		}
		points = append(points, p)
	}

	return points, nil
}
