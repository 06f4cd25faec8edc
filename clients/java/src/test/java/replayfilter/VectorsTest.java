package replayfilter;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.File;
import java.io.IOException;
import java.util.stream.Stream;
import java.util.stream.StreamSupport;
import org.apache.kafka.common.header.internals.RecordHeaders;
import org.junit.jupiter.api.Test;

/** The known answers that the Python library is tested with, too. */
class VectorsTest {
    private static JsonNode vectors(String name, String part) throws IOException {
        return new ObjectMapper().readTree(new File("../../tests/vectors/" + name)).get(part);
    }

    private static byte[] bytes(String hex) {
        byte[] found = new byte[hex.length() / 2];
        for (int i = 0; i < found.length; i++) {
            found[i] = (byte) Integer.parseInt(hex.substring(2 * i, 2 * i + 2), 16);
        }
        return found;
    }

    @Test
    void stamps() throws IOException {
        for (JsonNode each : vectors("stamps.json", "stamps")) {
            Stamp stamp = new Stamp(
                    each.get("pid").longValue(), each.get("partition").intValue(), each.get("offset").longValue());
            byte[] wire = bytes(each.get("hex").textValue());
            assertEquals(stamp, Stamp.fromBytes(wire).orElseThrow());
            assertArrayEquals(wire, stamp.toBytes());
        }
        for (JsonNode each : vectors("stamps.json", "not_stamps")) {
            assertTrue(Stamp.fromBytes(bytes(each.textValue())).isEmpty(), each.textValue());
        }
    }

    @Test
    void pids() throws IOException {
        JsonNode known = vectors("pids.json", "xxh3");
        assertTrue(known.size() > 3);
        for (JsonNode each : known) {
            Stream<JsonNode> parts = StreamSupport.stream(each.get("parts").spliterator(), false);
            assertEquals(each.get("pid").longValue(), ProducerId.of(parts.map(JsonNode::textValue).toArray(String[]::new)));
        }
    }

    @Test
    void partitionsAreThoseOfTheSource() {
        assertEquals(1, new Stamp(7, 5, 0).partitionIn(4));
        assertEquals(3, new Stamp(7, -1, 0).partitionIn(4)); // as Python's %
    }

    @Test
    void aHeaderIsReplaced() {
        RecordHeaders headers = new RecordHeaders();
        new Stamp(7, 0, 1).addTo(headers);
        new Stamp(7, 0, 2).addTo(headers);
        assertEquals(1, headers.toArray().length);
        assertEquals(2, Stamp.fromBytes(headers.lastHeader(Stamp.HEADER).value()).orElseThrow().offset());
    }
}
