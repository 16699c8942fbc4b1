// Command pause is the program of the tests' pods: it waits until it is killed.
package main

import "syscall"

func main() {
	for {
		syscall.Pause()
	}
}
