package supervise

// What becomes of a generation and of a process is written down here as tables,
// so that a test can walk every pair. A pair that is not in its table must not
// happen: the event is then ignored by the code and reported as false.

type generationState int

const (
	generationStarting generationState = iota
	generationLive
	generationStopping
	generationEnded
)

type generationEvent int

const (
	// eventHello: init has spoken.
	eventHello generationEvent = iota
	// eventStop: we end it.
	eventStop
	// eventGone: its processes are gone.
	eventGone
)

var generationTable = map[generationState]map[generationEvent]generationState{
	generationStarting: {eventHello: generationLive, eventStop: generationStopping, eventGone: generationEnded},
	generationLive:     {eventStop: generationStopping, eventGone: generationEnded},
	// A Hello may cross with the stop.
	generationStopping: {eventHello: generationStopping, eventStop: generationStopping, eventGone: generationEnded},
	generationEnded:    {eventStop: generationEnded, eventGone: generationEnded},
}

func (s generationState) next(e generationEvent) (generationState, bool) {
	to, ok := generationTable[s][e]
	if !ok {
		return s, false
	}
	return to, true
}

type processState int

const (
	processStarting processState = iota
	processRunning
	processEnding
	processExited
)

type processEvent int

const (
	// eventStarted: init has started it.
	eventStarted processEvent = iota
	// eventFailed: init could not.
	eventFailed
	// eventKill: its end is asked for.
	eventKill
	// eventExited: its main process has exited.
	eventExited
	// eventLost: its generation has ended.
	eventLost
)

var processTable = map[processState]map[processEvent]processState{
	processStarting: {eventStarted: processRunning, eventFailed: processExited, eventLost: processExited},
	processRunning:  {eventKill: processEnding, eventExited: processExited, eventLost: processExited},
	processEnding:   {eventKill: processEnding, eventExited: processExited, eventLost: processExited},
	// A late kill touches nothing: what runs on in the background stays.
	processExited: {eventKill: processExited, eventLost: processExited},
}

func (s processState) next(e processEvent) (processState, bool) {
	to, ok := processTable[s][e]
	if !ok {
		return s, false
	}
	return to, true
}
