package main

import (
	"fmt"
	"image/color"
	"math"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	_ "gonum.org/v1/plot/vg/vgsvg" // the format of the files
)

// figure is one plot: a CSV file, and the labels of its axes.
type figure struct {
	name, title, x, y string
	linear            bool // linear y axis, which then begins at 0
}

// figures lists all plots.
var figures = []figure{
	{name: "keys", title: "A check, by the number of keys", x: "keys", y: "ns a check, one core"},
	{name: "memory", title: "Memory, by the number of keys", x: "keys", y: "bytes a counter", linear: true},
	{name: "rules", title: "A check that one rule matches, by the number of rules", x: "rules",
		y: "ns a check, one core"},
	{name: "subjects", title: "A check, by the number of subjects in the rules",
		x: "subjects listed", y: "ns a check, one core"},
	{name: "goroutines", title: "Checks together, by the number of goroutines", x: "goroutines",
		y: "checks a second", linear: true},
	{name: "log", title: "A refusal by a sliding-window log", x: "entries of the log", y: "ns a check, one core"},
	{name: "nodes-messages", title: "Messages, by the number of nodes", x: "nodes", y: "messages a check"},
	{name: "nodes-bytes", title: "Bytes of messages, by the number of nodes", x: "nodes", y: "bytes a check"},
	{name: "nodes-load", title: "Messages of one node, by the number of nodes", x: "nodes",
		y: "messages a second, sent and received"},
}

// draw writes the plot of points to path.
func (f *figure) draw(points []point, path string) error {
	p := plot.New()
	p.Title.Text = f.title
	p.X.Label.Text = f.x
	p.Y.Label.Text = f.y
	p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, decades{}

	if f.linear {
		p.Y.Tick.Marker = named{plot.DefaultTicks{}}
	} else {
		p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, decades{}
	}

	p.Add(plotter.NewGrid())
	var names []string

	lines := map[string][]point{}
	for _, one := range points {
		if lines[one.line] == nil {
			names = append(names, one.line)
		}
		lines[one.line] = append(lines[one.line], one)
	}

	for i, name := range names {
		if err := addLine(p, i, name, lines[name]); err != nil {
			return err
		}
	}

	f.frame(p, points)
	p.Legend.Top, p.Legend.Left = true, true
	p.Legend.XOffs, p.Legend.YOffs = vg.Points(6), -vg.Points(6)
	return p.Save(18*vg.Centimeter, 11*vg.Centimeter, path)
}

// frame leaves room around the points, and above them for the legend. A flat
// curve has to look flat, so a logarithmic axis spans at least two decades.
func (f *figure) frame(p *plot.Plot, points []point) {
	least, most := math.Inf(1), 0.0
	for _, one := range points {
		least, most = min(least, one.least), max(most, one.most)
	}

	if f.linear {
		p.Y.Min, p.Y.Max = 0, 1.6*most
		return
	}

	p.Y.Min = math.Pow(10, math.Floor(math.Log10(least)))
	p.Y.Max = math.Pow(10, math.Ceil(math.Log10(6*most)))

	if p.Y.Max < 100*p.Y.Min {
		p.Y.Max = 100 * p.Y.Min
	}
	if p.X.Max < 2*p.X.Min {
		p.X.Max = 10 * p.X.Min
	}
}

// addLine adds the i-th line with its bars.
func addLine(p *plot.Plot, i int, name string, points []point) error {
	data := &bars{}
	for _, one := range points {
		data.XYs = append(data.XYs, plotter.XY{X: one.x, Y: one.y})
		data.YErrors = append(data.YErrors, struct{ Low, High float64 }{one.y - one.least, one.most - one.y})
	}

	line, marks, err := plotter.NewLinePoints(data.XYs)
	if err != nil {
		return err
	}

	errorBars, err := plotter.NewYErrorBars(data)
	if err != nil {
		return err
	}

	line.Color, line.Dashes = plotutil.Color(i), plotutil.Dashes(i)
	marks.Color, marks.Shape = plotutil.Color(i), draw.CircleGlyph{}
	errorBars.Color = color.Gray{Y: 150}
	p.Add(errorBars, line, marks)
	p.Legend.Add(name, line, marks)

	return nil
}

// bars are points with their minimum and maximum.
type bars struct {
	plotter.XYs
	plotter.YErrors
}

// decades puts ticks at 1, 2 and 5 times each power of ten, and labels the
// powers, or all ticks if there are few.
type decades struct{}

func (decades) Ticks(least, most float64) []plot.Tick {
	var ticks []plot.Tick
	few := most/least <= 1000
	for power := math.Floor(math.Log10(least)); power <= math.Ceil(math.Log10(most)); power++ {
		for _, digit := range []float64{1, 2, 5} {
			v := digit * math.Pow(10, power)
			if v < least*0.999 || v > most*1.001 {
				continue
			}
			t := plot.Tick{Value: v}
			if digit == 1 || few {
				t.Label = amount(v)
			}
			ticks = append(ticks, t)
		}
	}

	return ticks
}

// named formats the numbers of other ticks in the same way.
type named struct{ plot.Ticker }

func (n named) Ticks(least, most float64) []plot.Tick {
	ticks := n.Ticker.Ticks(least, most)
	for i := range ticks {
		if ticks[i].Label != "" {
			ticks[i].Label = amount(ticks[i].Value)
		}
	}
	return ticks
}

// amount formats a number for people: 1, 20 k, 10 M.
func amount(v float64) string {
	switch {
	case v >= 1e6:
		return fmt.Sprintf("%.3g M", v/1e6)
	case v >= 1e3:
		return fmt.Sprintf("%.3g k", v/1e3)
	}
	return fmt.Sprintf("%.3g", v)
}
