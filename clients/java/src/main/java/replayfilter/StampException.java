package replayfilter;

/** Why a {@link StampingProducer} doesn't write a record, or can't go on. */
public final class StampException extends RuntimeException {
    private static final long serialVersionUID = 1L;

    StampException(String message) {
        super(message);
    }

    StampException(String message, Throwable cause) {
        super(message, cause);
    }
}
