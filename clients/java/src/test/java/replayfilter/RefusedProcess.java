package replayfilter;

import java.util.Map;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import replayfilter.StampingProducer.StampIn;

/** Writes 100 records of which the broker refuses the one with source offset 50, and prints why it ends. */
public final class RefusedProcess {
    private static final int REFUSED = 50;
    private static final int TOO_LARGE = 50_000; // bytes; the test's topic takes 10,000

    private RefusedProcess() {}

    public static void main(String[] arguments) {
        Map<String, Object> settings = Map.of("bootstrap.servers", arguments[0], "batch.size", 1);
        try (var producer =
                new StampingProducer<>(settings, arguments[1], 7, StampIn.KEY, new ByteArraySerializer())) {
            for (int offset = 0; offset < 2 * REFUSED; offset++) {
                producer.send(0, offset, new byte[offset == REFUSED ? TOO_LARGE : 1]);
            }
        } catch (StampException error) {
            System.out.println(error.getMessage());
        }
    }
}
