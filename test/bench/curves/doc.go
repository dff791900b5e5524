// Program curves measures how cost grows with the work: keys, rules, subjects,
// nodes, goroutines, entries of a log. For each, it writes a CSV file and a
// plot into the folder named by -out.
//
//	curves -out ../docs/lab/curves          all of them, some minutes
//	curves -out ../docs/lab/curves -draw    only the plots, from the CSV files that are there
//	curves -out /tmp/x -quick           small sizes, to see that it works
//
// It times on one core (except goroutines), in rounds over all points of a
// plot, so that a temporary disturbance does not bend a curve. A point is the
// median of its rounds; the bars are the minimum and maximum.
//
// Messages between nodes are counted on virtual time, by the test of this package: [TestNodes].
package main
