/**
 * Runs a function once nothing holds the registered object any more: the way
 * back for numbers of the core whose JavaScript side was dropped without a word.
 * The function must not reach the object, not even through the scope it was made in.
 */
export const whenCollected = new FinalizationRegistry<() => void>((giveBack) => giveBack());
