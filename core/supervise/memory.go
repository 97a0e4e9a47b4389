package supervise

// Memory is where output is put. It returns size bytes that begin with what old
// holds, as far as it fits; old, which begins where Memory made it begin, must not be
// used any more. Size 0 gives old back. Nil puts it into Go's memory.
//
// A host that takes the output over can so have it written to its place at once.
type Memory func(old []byte, size int) []byte

func (m Memory) resize(old []byte, size int) []byte {
	if m != nil {
		return m(old, size)
	}
	if size <= cap(old) {
		return old[:size]
	}
	grown := make([]byte, size)
	copy(grown, old)
	return grown
}
