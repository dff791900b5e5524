// Program curves measures how cost grows with the work: keys, rules, subjects, nodes, goroutines, entries of a log. It writes
// a CSV file and a plot of it for each, into the folder given by -out.
//
//	curves -out ../docs/curves          all of them, some minutes
//	curves -out ../docs/curves -draw    only the plots, from the CSV files that are there
//	curves -out /tmp/x -quick           small sizes, to see that it works
//
// What is timed is timed on one core (goroutines excepted), in rounds that go over all points of a plot, so that what
// disturbs the machine for a while does not bend a curve. A point is the median of its rounds; the bars are the least and the most.
//
// What nodes send is counted on virtual time, by the test of this package: [TestNodes].
package main
