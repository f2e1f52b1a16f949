// Exercise digest of docs/tour-request.md: a key that is stored and compared as it is.
package main

import "fmt"

const letters = "0123456789abcdefghijklmnopqrstuvwxyz"

var stored = "k7f3zq0w" // what the database keeps of somebody's key

// check compares 8 bytes. An attacker measures its time; here, steps is how many it has looked at.
func check(key string) (same bool, steps int) {
	for i := range stored {
		if key[i] != stored[i] {
			return false, i + 1
		}
	}
	return true, len(stored)
}

// attack guesses a key of 8 letters, one letter after the other.
func attack() (key string, guesses int) {
	for place := range 8 {
		known, longest := key, 0
		padding := "........"[place+1:] // so that a guess has 8 letters
		for _, letter := range letters {
			guess := known + string(letter)
			same, steps := check(guess + padding)
			if same || steps > longest {
				key, longest = guess, steps
			}
			guesses++
		}
	}
	return key, guesses
}

func main() {
	found, guesses := attack()
	fmt.Printf("stored: %q - guessing ends at %q after %d guesses\n", stored, found, guesses)
}
