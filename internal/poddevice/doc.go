// Package poddevice finds out which kinds of device pairs for pods this kernel can make.
//
// It refuses to make one in a namespace that outlives the attempt.
package poddevice
