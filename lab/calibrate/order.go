package calibrate

import "sort"

// overtakers is how many packets went ahead of others: the smallest number whose removal
// leaves the rest in the order of sending.
func overtakers(seqs []uint32) int {
	// ends[i] is the lowest last number of an ordered subsequence of i+1 packets.
	var ends []uint32
	for _, s := range seqs {
		i := sort.Search(len(ends), func(i int) bool { return ends[i] >= s })
		if i == len(ends) {
			ends = append(ends, s)
		} else {
			ends[i] = s
		}
	}
	return len(seqs) - len(ends)
}
