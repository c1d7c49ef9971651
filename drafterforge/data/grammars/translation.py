"""Translation prompts: sentences and messages from parallel templates in seven languages, and English texts with a format to keep."""

# Templates and word lists keep one entry a line, with a cell for each of LANGUAGES.
# ruff: noqa: E501

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial

from drafterforge.data.grammars.base import Writer, fill, framed, lines, rows

LANGUAGES = {
    "en": "English",
    "de": "German",
    "fr": "French",
    "es": "Spanish",
    "it": "Italian",
    "pt": "Portuguese",
    "nl": "Dutch",
}
FOREIGN = tuple(code for code in LANGUAGES if code != "en")
OTHERS = ("Polish", "Swedish", "Danish", "Czech", "Turkish", "Japanese", "Korean", "Mandarin Chinese", "Arabic", "Hindi", "Finnish", "Greek", "Romanian", "Indonesian")  # fmt: skip


def parallel(block: str) -> list[dict[str, str]]:
    """The rows of a word list by language."""
    return [dict(zip(LANGUAGES, cells, strict=True)) for cells in rows(lines(block))]


# Objects of a verb, hence German accusatives.
THINGS = parallel("""
the key | den Schlüssel | la clé | la llave | la chiave | a chave | de sleutel
the letter | den Brief | la lettre | la carta | la lettera | a carta | de brief
the invoice | die Rechnung | la facture | la factura | la fattura | a fatura | de factuur
the contract | den Vertrag | le contrat | el contrato | il contratto | o contrato | het contract
the suitcase | den Koffer | la valise | la maleta | la valigia | a mala | de koffer
the passport | den Reisepass | le passeport | el pasaporte | il passaporto | o passaporte | het paspoort
the tickets | die Eintrittskarten | les billets | las entradas | i biglietti | os bilhetes | de kaartjes
the umbrella | den Regenschirm | le parapluie | el paraguas | l'ombrello | o guarda-chuva | de paraplu
the phone number | die Telefonnummer | le numéro de téléphone | el número de teléfono | il numero di telefono | o número de telefone | het telefoonnummer
the address | die Adresse | l'adresse | la dirección | l'indirizzo | a morada | het adres
the password | das Passwort | le mot de passe | la contraseña | la password | a palavra-passe | het wachtwoord
the photos | die Fotos | les photos | las fotos | le foto | as fotografias | de foto's
the package | das Paket | le colis | el paquete | il pacco | a encomenda | het pakket
the bicycle | das Fahrrad | le vélo | la bicicleta | la bicicletta | a bicicleta | de fiets
the book | das Buch | le livre | el libro | il libro | o livro | het boek
the newspaper | die Zeitung | le journal | el periódico | il giornale | o jornal | de krant
the report | den Bericht | le rapport | el informe | il rapporto | o relatório | het verslag
the map | die Karte | la carte | el mapa | la mappa | o mapa | de kaart
the camera | die Kamera | l'appareil photo | la cámara | la macchina fotografica | a câmara | de camera
the laptop | den Laptop | l'ordinateur portable | el portátil | il portatile | o portátil | de laptop
the coffee machine | die Kaffeemaschine | la machine à café | la cafetera | la macchina del caffè | a máquina de café | het koffiezetapparaat
the cake | den Kuchen | le gâteau | el pastel | la torta | o bolo | de taart
the wine | den Wein | le vin | el vino | il vino | o vinho | de wijn
the menu | die Speisekarte | le menu | el menú | il menù | a ementa | de menukaart
the gift | das Geschenk | le cadeau | el regalo | il regalo | o presente | het cadeau
the flowers | die Blumen | les fleurs | las flores | i fiori | as flores | de bloemen
the coat | den Mantel | le manteau | el abrigo | il cappotto | o casaco | de jas
the shoes | die Schuhe | les chaussures | los zapatos | le scarpe | os sapatos | de schoenen
the glasses | die Brille | les lunettes | las gafas | gli occhiali | os óculos | de bril
the medicine | das Medikament | le médicament | el medicamento | la medicina | o medicamento | het medicijn
the prescription | das Rezept | l'ordonnance | la receta | la ricetta | a receita | het recept
the form | das Formular | le formulaire | el formulario | il modulo | o formulário | het formulier
the schedule | den Zeitplan | l'emploi du temps | el horario | l'orario | o horário | het rooster
the presentation | die Präsentation | la présentation | la presentación | la presentazione | a apresentação | de presentatie
the application | die Bewerbung | la candidature | la solicitud | la candidatura | a candidatura | de sollicitatie
the sample | das Muster | l'échantillon | la muestra | il campione | a amostra | het monster
the ring | den Ring | la bague | el anillo | l'anello | o anel | de ring
the guitar | die Gitarre | la guitare | la guitarra | la chitarra | a guitarra | de gitaar
the ladder | die Leiter | l'échelle | la escalera | la scala | a escada | de ladder
the blanket | die Decke | la couverture | la manta | la coperta | a manta | de deken
the certificate | das Zeugnis | le certificat | el certificado | il certificato | o certificado | het certificaat
the manual | die Anleitung | le mode d'emploi | el manual | il manuale | o manual | de handleiding
""")

THING_SENTENCES = parallel("""
I cannot find {x}. | Ich kann {x} nicht finden. | Je ne trouve pas {x}. | No encuentro {x}. | Non trovo {x}. | Não encontro {x}. | Ik kan {x} niet vinden.
Who took {x}? | Wer hat {x} genommen? | Qui a pris {x} ? | ¿Quién ha cogido {x}? | Chi ha preso {x}? | Quem levou {x}? | Wie heeft {x} meegenomen?
We need {x} by {time}. | Wir brauchen {x} bis {time}. | Il nous faut {x} pour {time}. | Necesitamos {x} para {time}. | Dobbiamo avere {x} entro {time}. | Precisamos de ter {x} até {time}. | We hebben {x} uiterlijk {time} nodig.
{Person} has forgotten {x}. | {Person} hat {x} vergessen. | {Person} a oublié {x}. | {Person} ha olvidado {x}. | {Person} ha dimenticato {x}. | {Person} esqueceu {x}. | {Person} is {x} vergeten.
Did you see {x} {where}? | Hast du {x} {where} gesehen? | As-tu vu {x} {where} ? | ¿Has visto {x} {where}? | Hai visto {x} {where}? | Viste {x} {where}? | Heb je {x} {where} gezien?
Could you please show me {x}? | Könnten Sie mir bitte {x} zeigen? | Pourriez-vous me montrer {x}, s'il vous plaît ? | ¿Podría enseñarme {x}, por favor? | Potrebbe mostrarmi {x}, per favore? | Poderia mostrar-me {x}, por favor? | Zou u mij {x} kunnen laten zien, alstublieft?
I will bring {x} {when}. | Ich bringe {x} {when} mit. | J'apporterai {x} {when}. | Traeré {x} {when}. | Porterò {x} {when}. | Vou trazer {x} {when}. | Ik neem {x} {when} mee.
{Person} left {x} {where}. | {Person} hat {x} {where} gelassen. | {Person} a laissé {x} {where}. | {Person} ha dejado {x} {where}. | {Person} ha lasciato {x} {where}. | {Person} deixou {x} {where}. | {Person} heeft {x} {where} laten liggen.
Please return {x} {when}. | Bitte bringen Sie {x} {when} zurück. | Merci de rapporter {x} {when}. | Por favor, devuelva {x} {when}. | Si prega di restituire {x} {when}. | Por favor, devolva {x} {when}. | Breng {x} alstublieft {when} terug.
We have to check {x} again {when}. | Wir müssen {x} {when} noch einmal prüfen. | Nous devons vérifier {x} encore une fois {when}. | Tenemos que revisar {x} otra vez {when}. | Dobbiamo controllare {x} ancora una volta {when}. | Temos de verificar {x} mais uma vez {when}. | We moeten {x} {when} nog een keer controleren.
Have you already paid for everything, or only for {x}? | Haben Sie schon alles bezahlt oder nur {x}? | Avez-vous déjà tout payé, ou seulement {x} ? | ¿Ya lo ha pagado todo o solo {x}? | Ha già pagato tutto o soltanto {x}? | Já pagou tudo ou só {x}? | Hebt u alles al betaald, of alleen {x}?
I would like to see {x} before I decide. | Ich möchte {x} sehen, bevor ich mich entscheide. | J'aimerais voir {x} avant de me décider. | Me gustaría ver {x} antes de decidir. | Vorrei vedere {x} prima di decidere. | Gostaria de ver {x} antes de decidir. | Ik wil {x} graag zien voordat ik beslis.
If nobody wants {x}, I will take care of it. | Wenn niemand {x} haben will, kümmere ich mich darum. | Si personne ne veut {x}, je m'en occupe. | Si nadie quiere {x}, me encargo yo. | Se nessuno vuole {x}, ci penso io. | Se ninguém quiser {x}, eu trato disso. | Als niemand {x} wil hebben, regel ik het.
I will send you {x} {when}. | Ich schicke dir {x} {when}. | Je t'enverrai {x} {when}. | Te enviaré {x} {when}. | Ti manderò {x} {when}. | Envio-te {x} {when}. | Ik stuur je {x} {when}.
""")

ACTIONS = parallel("""
book a table | einen Tisch reservieren | réserver une table | reservar una mesa | prenotare un tavolo | reservar uma mesa | een tafel reserveren
buy a present | ein Geschenk kaufen | acheter un cadeau | comprar un regalo | comprare un regalo | comprar um presente | een cadeau kopen
learn to swim | schwimmen lernen | apprendre à nager | aprender a nadar | imparare a nuotare | aprender a nadar | leren zwemmen
visit the museum | das Museum besuchen | visiter le musée | visitar el museo | visitare il museo | visitar o museu | het museum bezoeken
cook dinner | das Abendessen kochen | préparer le dîner | preparar la cena | preparare la cena | preparar o jantar | het avondeten koken
call the doctor | den Arzt anrufen | appeler le médecin | llamar al médico | chiamare il medico | telefonar ao médico | de dokter bellen
send the documents | die Unterlagen schicken | envoyer les documents | enviar los documentos | inviare i documenti | enviar os documentos | de documenten opsturen
cancel the order | die Bestellung stornieren | annuler la commande | cancelar el pedido | annullare l'ordine | cancelar a encomenda | de bestelling annuleren
rent a car | ein Auto mieten | louer une voiture | alquilar un coche | noleggiare una macchina | alugar um carro | een auto huren
repair the roof | das Dach reparieren | réparer le toit | reparar el tejado | riparare il tetto | reparar o telhado | het dak repareren
sell the house | das Haus verkaufen | vendre la maison | vender la casa | vendere la casa | vender a casa | het huis verkopen
open an account | ein Konto eröffnen | ouvrir un compte | abrir una cuenta | aprire un conto | abrir uma conta | een rekening openen
sign the contract | den Vertrag unterschreiben | signer le contrat | firmar el contrato | firmare il contratto | assinar o contrato | het contract ondertekenen
change trains | umsteigen | changer de train | cambiar de tren | cambiare treno | mudar de comboio | overstappen
speak with the manager | mit dem Geschäftsführer sprechen | parler avec le gérant | hablar con el encargado | parlare con il responsabile | falar com o gerente | met de manager spreken
take the dog for a walk | mit dem Hund spazieren gehen | promener le chien | pasear al perro | portare a spasso il cane | passear o cão | de hond uitlaten
water the plants | die Pflanzen gießen | arroser les plantes | regar las plantas | innaffiare le piante | regar as plantas | de planten water geven
pay by card | mit Karte zahlen | payer par carte | pagar con tarjeta | pagare con la carta | pagar com cartão | met een kaart betalen
stay one more night | noch eine Nacht bleiben | rester une nuit de plus | pasar una noche más | restare un'altra notte | ficar mais uma noite | nog een nacht blijven
leave earlier | früher gehen | partir plus tôt | salir antes | uscire prima | sair mais cedo | eerder vertrekken
work from home | von zu Hause arbeiten | travailler à la maison | trabajar desde casa | lavorare da casa | trabalhar em casa | thuis werken
move to another city | in eine andere Stadt ziehen | déménager dans une autre ville | cambiar de ciudad | cambiare città | mudar para outra cidade | naar een andere stad verhuizen
finish the report | den Bericht fertigstellen | terminer le rapport | terminar el informe | finire il rapporto | acabar o relatório | het verslag afmaken
clean the kitchen | die Küche putzen | nettoyer la cuisine | limpiar la cocina | pulire la cucina | limpar a cozinha | de keuken schoonmaken
watch the game | das Spiel sehen | regarder le match | ver el partido | guardare la partita | ver o jogo | de wedstrijd kijken
play the piano | Klavier spielen | jouer du piano | tocar el piano | suonare il pianoforte | tocar piano | piano spelen
read the instructions | die Anleitung lesen | lire le mode d'emploi | leer las instrucciones | leggere le istruzioni | ler as instruções | de handleiding lezen
save money | Geld sparen | économiser de l'argent | ahorrar dinero | risparmiare denaro | poupar dinheiro | geld sparen
try the soup | die Suppe probieren | goûter la soupe | probar la sopa | assaggiare la zuppa | provar a sopa | de soep proeven
wait outside | draußen warten | attendre dehors | esperar fuera | aspettare fuori | esperar lá fora | buiten wachten
take the train | den Zug nehmen | prendre le train | tomar el tren | prendere il treno | apanhar o comboio | de trein nemen
invite the neighbors | die Nachbarn einladen | inviter les voisins | invitar a los vecinos | invitare i vicini | convidar os vizinhos | de buren uitnodigen
plant a tree | einen Baum pflanzen | planter un arbre | plantar un árbol | piantare un albero | plantar uma árvore | een boom planten
ask for a refund | eine Erstattung verlangen | demander un remboursement | pedir un reembolso | chiedere un rimborso | pedir um reembolso | geld terugvragen
write a novel | einen Roman schreiben | écrire un roman | escribir una novela | scrivere un romanzo | escrever um romance | een roman schrijven
climb the mountain | auf den Berg steigen | gravir la montagne | subir a la montaña | salire sulla montagna | subir a montanha | de berg beklimmen
look for a new job | eine neue Stelle suchen | chercher un nouvel emploi | buscar un nuevo trabajo | cercare un nuovo lavoro | procurar um novo emprego | een nieuwe baan zoeken
drink less coffee | weniger Kaffee trinken | boire moins de café | beber menos café | bere meno caffè | beber menos café | minder koffie drinken
""")

ACTION_SENTENCES = parallel("""
{Person} wants to {x} {when}. | {Person} will {when} {x}. | {Person} veut {x} {when}. | {Person} quiere {x} {when}. | {Person} vuole {x} {when}. | {Person} quer {x} {when}. | {Person} wil {when} {x}.
{Person} has to {x} {when}. | {Person} muss {when} {x}. | {Person} doit {x} {when}. | {Person} tiene que {x} {when}. | {Person} deve {x} {when}. | {Person} tem de {x} {when}. | {Person} moet {when} {x}.
{Person} can only {x} {when}. | {Person} kann nur {when} {x}. | {Person} peut {x} seulement {when}. | {Person} solo puede {x} {when}. | {Person} può {x} solo {when}. | {Person} só pode {x} {when}. | {Person} kan alleen {when} {x}.
{Person} would like to {x} this year. | {Person} möchte dieses Jahr {x}. | {Person} aimerait {x} cette année. | A {person} le gustaría {x} este año. | {Person} vorrebbe {x} quest'anno. | {Person} gostaria de {x} este ano. | {Person} zou dit jaar graag {x}.
Tomorrow we will finally be able to {x}. | Morgen können wir endlich {x}. | Demain, nous pourrons enfin {x}. | Mañana por fin podremos {x}. | Domani potremo finalmente {x}. | Amanhã vamos finalmente poder {x}. | Morgen kunnen we eindelijk {x}.
Where can one {x}? | Wo kann man {x}? | Où peut-on {x} ? | ¿Dónde se puede {x}? | Dove si può {x}? | Onde se pode {x}? | Waar kan men {x}?
I am going to {x} {when}. | Ich werde {when} {x}. | Je vais {x} {when}. | Voy a {x} {when}. | Ho intenzione di {x} {when}. | Vou {x} {when}. | Ik ga {when} {x}.
Should we {x} or wait? | Sollen wir {x} oder warten? | Faut-il {x} ou attendre ? | ¿Hay que {x} o es mejor esperar? | Dobbiamo {x} o aspettare? | Devemos {x} ou esperar? | Zullen we {x} of wachten?
Nobody wanted to {x}. | Niemand wollte {x}. | Personne ne voulait {x}. | Nadie quería {x}. | Nessuno voleva {x}. | Ninguém queria {x}. | Niemand wilde {x}.
Why do we have to {x} {when}? | Warum müssen wir {when} {x}? | Pourquoi devons-nous {x} {when} ? | ¿Por qué hay que {x} {when}? | Perché bisogna {x} {when}? | Porque é que é preciso {x} {when}? | Waarom moeten we {when} {x}?
Can one {x} {where}? | Kann man {where} {x}? | Peut-on {x} {where} ? | ¿Se puede {x} {where}? | Si può {x} {where}? | Pode-se {x} {where}? | Kan men {where} {x}?
Before it gets dark, we should {x}. | Bevor es dunkel wird, sollten wir {x}. | Avant la tombée de la nuit, il faudrait {x}. | Antes de que oscurezca, habría que {x}. | Prima che faccia buio, bisognerebbe {x}. | Antes de escurecer, seria bom {x}. | Voordat het donker wordt, kunnen we beter {x}.
{Person} said that it would be better to {x} {when}. | {Person} hat gesagt, man sollte lieber {when} {x}. | {Person} a dit qu'il vaudrait mieux {x} {when}. | {Person} dijo que sería mejor {x} {when}. | {Person} ha detto che sarebbe meglio {x} {when}. | {Person} disse que seria melhor {x} {when}. | {Person} zei dat we beter {when} konden {x}.
""")

# Where something is.
PLACES = parallel("""
at the station | am Bahnhof | à la gare | en la estación | alla stazione | na estação | op het station
at the airport | am Flughafen | à l'aéroport | en el aeropuerto | all'aeroporto | no aeroporto | op het vliegveld
in the kitchen | in der Küche | dans la cuisine | en la cocina | in cucina | na cozinha | in de keuken
in the office | im Büro | au bureau | en la oficina | in ufficio | no escritório | op kantoor
in the library | in der Bibliothek | à la bibliothèque | en la biblioteca | in biblioteca | na biblioteca | in de bibliotheek
in the hotel | im Hotel | à l'hôtel | en el hotel | in albergo | no hotel | in het hotel
in the park | im Park | dans le parc | en el parque | nel parco | no parque | in het park
at the market | auf dem Markt | au marché | en el mercado | al mercato | no mercado | op de markt
at school | in der Schule | à l'école | en la escuela | a scuola | na escola | op school
in the hospital | im Krankenhaus | à l'hôpital | en el hospital | in ospedale | no hospital | in het ziekenhuis
on the beach | am Strand | à la plage | en la playa | in spiaggia | na praia | op het strand
in the restaurant | im Restaurant | au restaurant | en el restaurante | al ristorante | no restaurante | in het restaurant
at the theater | im Theater | au théâtre | en el teatro | a teatro | no teatro | in het theater
on the train | im Zug | dans le train | en el tren | in treno | no comboio | in de trein
at the bank | in der Bank | à la banque | en el banco | in banca | no banco | bij de bank
in the garden | im Garten | dans le jardin | en el jardín | in giardino | no jardim | in de tuin
in the mountains | in den Bergen | à la montagne | en la montaña | in montagna | na montanha | in de bergen
in the city center | im Stadtzentrum | au centre-ville | en el centro | in centro | no centro da cidade | in het stadscentrum
at the pharmacy | in der Apotheke | à la pharmacie | en la farmacia | in farmacia | na farmácia | bij de apotheek
at the harbor | am Hafen | au port | en el puerto | al porto | no porto | in de haven
""")

PLACE_SENTENCES = parallel("""
We will meet {x} {when}. | Wir treffen uns {when} {x}. | Nous nous retrouvons {x} {when}. | Nos vemos {x} {when}. | Ci vediamo {x} {when}. | Encontramo-nos {x} {when}. | We spreken {when} {x} af.
There were too many people {x}. | {X} waren zu viele Menschen. | Il y avait trop de monde {x}. | Había demasiada gente {x}. | C'era troppa gente {x}. | Havia demasiada gente {x}. | Er waren te veel mensen {x}.
{Person} works {x} three days a week. | {Person} arbeitet drei Tage in der Woche {x}. | {Person} travaille {x} trois jours par semaine. | {Person} trabaja {x} tres días a la semana. | {Person} lavora {x} tre giorni alla settimana. | {Person} trabalha {x} três dias por semana. | {Person} werkt drie dagen per week {x}.
Is there a toilet {x}? | Gibt es {x} eine Toilette? | Y a-t-il des toilettes {x} ? | ¿Hay un baño {x}? | C'è un bagno {x}? | Há uma casa de banho {x}? | Is er een toilet {x}?
I lost my wallet {x}. | Ich habe {x} meinen Geldbeutel verloren. | J'ai perdu mon portefeuille {x}. | He perdido la cartera {x}. | Ho perso il portafoglio {x}. | Perdi a carteira {x}. | Ik heb {x} mijn portemonnee verloren.
{Person} has been waiting {x} for two hours. | {Person} wartet seit zwei Stunden {x}. | {Person} attend {x} depuis deux heures. | {Person} lleva dos horas esperando {x}. | {Person} aspetta {x} da due ore. | {Person} está à espera {x} há duas horas. | {Person} wacht al twee uur {x}.
It is forbidden to smoke {x}. | {X} ist das Rauchen verboten. | Il est interdit de fumer {x}. | Está prohibido fumar {x}. | È vietato fumare {x}. | É proibido fumar {x}. | Roken is {x} verboden.
Everything is more expensive {x}. | {X} ist alles teurer. | Tout est plus cher {x}. | Todo es más caro {x}. | Tutto è più caro {x}. | Tudo é mais caro {x}. | Alles is duurder {x}.
There is no internet connection {x}. | {X} gibt es keine Internetverbindung. | Il n'y a pas de connexion internet {x}. | No hay conexión a internet {x}. | Non c'è connessione a internet {x}. | Não há ligação à internet {x}. | Er is geen internetverbinding {x}.
Yesterday I saw {person} {x}. | Gestern habe ich {person} {x} gesehen. | Hier, j'ai vu {person} {x}. | Ayer vi a {person} {x}. | Ieri ho visto {person} {x}. | Ontem vi {person} {x}. | Gisteren heb ik {person} {x} gezien.
""")

PEOPLE = parallel("""
my sister | meine Schwester | ma sœur | mi hermana | mia sorella | a minha irmã | mijn zus
my mother | meine Mutter | ma mère | mi madre | mia madre | a minha mãe | mijn moeder
my daughter | meine Tochter | ma fille | mi hija | mia figlia | a minha filha | mijn dochter
my colleague Anna | meine Kollegin Anna | ma collègue Anna | mi compañera Anna | la mia collega Anna | a minha colega Anna | mijn collega Anna
my aunt | meine Tante | ma tante | mi tía | mia zia | a minha tia | mijn tante
my boss | meine Chefin | ma cheffe | mi jefa | la mia direttrice | a minha chefe | mijn bazin
the teacher | die Lehrerin | la professeure | la profesora | l'insegnante | a professora | de lerares
our neighbor | unsere Nachbarin | notre voisine | nuestra vecina | la nostra vicina | a nossa vizinha | onze buurvrouw
the doctor | die Ärztin | la médecin | la doctora | la dottoressa | a médica | de dokter
my grandmother | meine Großmutter | ma grand-mère | mi abuela | mia nonna | a minha avó | mijn grootmoeder
Sophie | Sophie | Sophie | Sophie | Sophie | a Sophie | Sophie
Marta | Marta | Marta | Marta | Marta | a Marta | Marta
""")
TIMES = parallel("""
tomorrow morning | morgen früh | demain matin | mañana por la mañana | domani mattina | amanhã de manhã | morgenochtend
tonight | heute Abend | ce soir | esta noche | stasera | esta noite | vanavond
on Friday | am Freitag | vendredi | el viernes | venerdì | na sexta-feira | op vrijdag
on Monday | am Montag | lundi | el lunes | lunedì | na segunda-feira | op maandag
next week | nächste Woche | la semaine prochaine | la próxima semana | la settimana prossima | na próxima semana | volgende week
at nine o'clock | um neun Uhr | à neuf heures | a las nueve | alle nove | às nove horas | om negen uur
at half past six | um halb sieben | à six heures et demie | a las seis y media | alle sei e mezza | às seis e meia | om half zeven
after lunch | nach dem Mittagessen | après le déjeuner | después de comer | dopo pranzo | depois do almoço | na de lunch
this afternoon | heute Nachmittag | cet après-midi | esta tarde | questo pomeriggio | esta tarde | vanmiddag
before the weekend | vor dem Wochenende | avant le week-end | antes del fin de semana | prima del fine settimana | antes do fim de semana | voor het weekend
""")
DEADLINES = parallel("""
Friday | Freitag | vendredi | el viernes | venerdì | sexta-feira | vrijdag
Monday | Montag | lundi | el lunes | lunedì | segunda-feira | maandag
tomorrow | morgen | demain | mañana | domani | amanhã | morgen
Thursday | Donnerstag | jeudi | el jueves | giovedì | quinta-feira | donderdag
""")

# What else a short message says.
MORE = parallel("""
Unfortunately I will be a little late. | Leider komme ich etwas später. | Malheureusement, je serai un peu en retard. | Por desgracia, llegaré un poco tarde. | Purtroppo arriverò un po' in ritardo. | Infelizmente, vou chegar um pouco atrasado. | Helaas kom ik een beetje later.
The weather is supposed to be bad. | Das Wetter soll schlecht werden. | Il paraît qu'il fera mauvais temps. | Parece que hará mal tiempo. | Pare che farà brutto tempo. | Parece que vai estar mau tempo. | Het schijnt slecht weer te worden.
It is really urgent. | Es ist wirklich dringend. | C'est vraiment urgent. | Es muy urgente. | È davvero urgente. | É mesmo urgente. | Het is echt dringend.
I do not know yet when I will be back. | Ich weiß noch nicht, wann ich zurück bin. | Je ne sais pas encore quand je serai de retour. | Todavía no sé cuándo estaré de vuelta. | Non so ancora quando sarò di ritorno. | Ainda não sei quando estarei de volta. | Ik weet nog niet wanneer ik terug ben.
The last train leaves at ten. | Der letzte Zug fährt um zehn. | Le dernier train part à dix heures. | El último tren sale a las diez. | L'ultimo treno parte alle dieci. | O último comboio parte às dez. | De laatste trein vertrekt om tien uur.
That was a misunderstanding. | Das war ein Missverständnis. | C'était un malentendu. | Fue un malentendido. | È stato un malinteso. | Foi um mal-entendido. | Dat was een misverstand.
Otherwise we will have to start all over again. | Sonst müssen wir noch einmal ganz von vorne anfangen. | Sinon, il faudra tout recommencer. | Si no, habrá que empezar de nuevo. | Altrimenti bisognerà ricominciare da capo. | Caso contrário, teremos de recomeçar do zero. | Anders moeten we helemaal opnieuw beginnen.
It took longer than expected. | Es hat länger gedauert als erwartet. | Cela a pris plus de temps que prévu. | Tardó más de lo previsto. | Ci è voluto più tempo del previsto. | Demorou mais do que o previsto. | Het duurde langer dan verwacht.
Nobody answered the phone. | Niemand ist ans Telefon gegangen. | Personne n'a répondu au téléphone. | Nadie contestó al teléfono. | Nessuno ha risposto al telefono. | Ninguém atendeu o telefone. | Niemand nam de telefoon op.
We can talk about it over a coffee. | Wir können bei einem Kaffee darüber reden. | On peut en parler autour d'un café. | Podemos hablarlo tomando un café. | Possiamo parlarne davanti a un caffè. | Podemos falar sobre isso a tomar um café. | We kunnen er bij een kop koffie over praten.
The price includes breakfast. | Das Frühstück ist im Preis enthalten. | Le petit déjeuner est compris dans le prix. | El desayuno está incluido en el precio. | La colazione è inclusa nel prezzo. | O pequeno-almoço está incluído no preço. | Het ontbijt is bij de prijs inbegrepen.
The elevator is out of order. | Der Aufzug ist außer Betrieb. | L'ascenseur est en panne. | El ascensor está averiado. | L'ascensore è guasto. | O elevador está avariado. | De lift is buiten gebruik.
""")
GREETINGS = parallel("""
Good morning, | Guten Morgen, | Bonjour, | Buenos días: | Buongiorno, | Bom dia, | Goedemorgen,
Hello everyone, | Hallo zusammen, | Bonjour à tous, | Hola a todos: | Ciao a tutti, | Olá a todos, | Hallo allemaal,
Good evening, | Guten Abend, | Bonsoir, | Buenas tardes: | Buonasera, | Boa noite, | Goedenavond,
""")
CLOSINGS = parallel("""
Many thanks in advance! | Vielen Dank im Voraus! | Merci d'avance ! | ¡Muchas gracias de antemano! | Grazie mille in anticipo! | Muito obrigado desde já! | Alvast hartelijk dank!
Kind regards | Mit freundlichen Grüßen | Cordialement | Un cordial saludo | Cordiali saluti | Com os melhores cumprimentos | Met vriendelijke groet
See you soon! | Bis bald! | À bientôt ! | ¡Hasta pronto! | A presto! | Até breve! | Tot gauw!
""")

FROM_ENGLISH = (
    "Translate into {language}: {text}",
    "Translate the following into {language}.\n\n{text}",
    "How do you say this in {language}? {text}",
    "{text}\n\nTranslate this into {language}.",
    "English: {text}\n{language}:",
    'Please translate this into natural {language}, not word for word:\n"{text}"',
    "I need this in {language} for {occasion}: {text}",
    "Give me a formal and an informal {language} version of this: {text}",
    "Translate to {language} and explain the grammar of your translation in one sentence.\n\n{text}",
    'What would a native speaker of {language} say? "{text}"',
    "Translate into {language} and into {second}:\n{text}",
    "{text} - in {language} please",
    "Put this into {language}. Keep the tone and the punctuation.\n\n{text}",
)
TO_ENGLISH = (
    "Translate into English: {text}",
    "Translate this {language} text into English.\n\n{text}",
    "What does this mean in English? {text}",
    "{text}\n\nTranslate to English.",
    "{language}: {text}\nEnglish:",
    "I got this message from {someone}. What does it say?\n\n{text}",
    "Translate from {language} to English and point out anything that cannot be translated literally.\n\n{text}",
    'Which language is this, and what does it mean? "{text}"',
    "Give me a literal and a natural English translation of this {language} text: {text}",
    "Translate to English, then list the {n} most useful words for a learner of {language}.\n\n{text}",
    "Is this {language} text polite? Translate it into English first.\n\n{text}",
)
ACROSS = (
    "Translate from {language} into {second}: {text}",
    "{text}\n\nI need this {language} text in {second}.",
    "Translate the text below into {second}. The original is {language}.\n\n{text}",
    "{language}: {text}\n{second}:",
)
NATIVE = {
    "de": ("Übersetze bitte ins Englische: {text}", "Was heißt das auf Englisch? {text}", "Wie sagt man auf Englisch: {text}"),
    "fr": ("Traduis en anglais : {text}", "Comment dit-on cela en anglais ? {text}", "Peux-tu traduire ce texte en anglais ?\n\n{text}"),
    "es": ("Traduce al inglés: {text}", "¿Cómo se dice esto en inglés? {text}", "Necesito este texto en inglés, por favor.\n\n{text}"),
    "it": ("Traduci in inglese: {text}", "Come si dice in inglese? {text}", "Puoi tradurre questo testo in inglese?\n\n{text}"),
    "pt": ("Traduz para inglês: {text}", "Como se diz isto em inglês? {text}", "Preciso deste texto em inglês, por favor.\n\n{text}"),
    "nl": ("Vertaal naar het Engels: {text}", "Hoe zeg je dit in het Engels? {text}", "Kun je deze tekst in het Engels vertalen?\n\n{text}"),
}  # fmt: skip
CHECKS = (
    "Is this a good {language} translation?\n\nEnglish: {english}\n{language}: {text}",
    'Check my {language} homework. I had to translate "{english}" and wrote "{text}"',
    "Improve this translation from {language} if necessary.\n\n{text}\n-> {english}",
    'Explain word by word how "{text}" ({language}) comes to mean "{english}"',
)

# English only: a text with a form to keep, and where it is used.
FORMATTED = {
    "user interface": (
        "Translate the texts of this {thing} into {language}. Keep the keys and the placeholders.\n\n```json\n{code}\n```",
        "Localize for {language}. Leave everything inside angle brackets and percent signs as it is.\n\n```json\n{code}\n```",
        "These strings of our {thing} need a {language} version, each at most {limit} characters long.\n\n```json\n{code}\n```",
    ),
    "glossary": (
        "Translate into {language}. Be consistent with these terms and list how you translated them: {names}.\n\n{text}",
        "Terms: {names}.\nTranslate the text into {language}, and mark each of these terms with an asterisk.\n\n{text}",
        "Translate the paragraph into {language} and make a glossary of the technical terms afterwards.\n\n{text}",
    ),
    "markdown": (
        "Translate this Markdown into {language} without changing the formatting.\n\n{markdown}",
        "Translate the list into {language}. Keep the bold words bold.\n\n{markdown}",
    ),
    "register": (
        "Translate into {language} for {audience}.\n\n{text}",
        "Translate into {language} using {form}.\n\n{text}",
        "Translate into {language} and adapt units and examples for local readers.\n\n{text}",
        "Translate into {language} in simple words and short sentences, for learners of the language.\n\n{text}",
        "Write subtitles in {language} for this text, at most two lines each.\n\n{text}",
    ),
}
# what it is | the sentences of a text on it, three technical terms in it
TEXTS = lines("""
coffee machine | Fill the water tank and press the power button. Wait until the light stops blinking before you insert a capsule. Empty the drip tray once a day. | water tank, capsule, drip tray
banking app | Your transfer has been received and will be processed within one working day. You can cancel it until midnight under Pending Payments. Never share your access code with anyone. | transfer, pending payments, access code
electric scooter | Charge the battery fully before the first ride. Fold the handlebar only when the scooter is switched off. A helmet is strongly recommended. | battery, handlebar, helmet
holiday apartment | The keys are in the box next to the front door. Please separate glass, paper and organic waste. Check-out is at ten in the morning. | front door, organic waste, check-out
job advert | We are looking for an experienced nurse for our day clinic. You work in a small team and choose your own shifts. Applications are welcome until the end of the month. | nurse, day clinic, shifts
museum audio guide | This painting shows a harbor at dawn. Notice how the light seems to come from the water itself. The artist painted it from memory after moving inland. | painting, dawn, artist
recipe | Melt the butter in a heavy pan and add the flour while stirring. Pour in the milk slowly so that no lumps form. Season with salt, pepper and a little nutmeg. | butter, flour, nutmeg
rental contract | The deposit amounts to two months' rent and is returned after the final inspection. The tenant pays for heating and water. Pets require written permission. | deposit, tenant, final inspection
dental practice | Please arrive ten minutes early and bring your insurance card. If you cannot come, call us at least a day in advance. You should not eat for two hours after the treatment. | insurance card, treatment, practice
hiking trail | The path is steep and slippery after rain. Follow the red and white marks and stay behind the fence near the cliff. The whole loop takes about four hours. | path, marks, cliff
online course | Each lesson ends with a short quiz. You need seventy percent to unlock the next chapter. Your certificate is sent by e-mail once all chapters are complete. | lesson, quiz, certificate
wind turbine | The rotor turns a generator inside the nacelle. When the wind is too strong, the blades are turned out of the wind. One turbine supplies several thousand households. | rotor, nacelle, blades
bakery | All our breads are made with sourdough and rest for at least twenty hours. We use flour from a mill in the next village. Sliced bread should be eaten within three days. | sourdough, mill, flour
flight change | Your flight has been rescheduled and now departs three hours later. You may rebook free of charge or ask for a refund. We apologize for the inconvenience. | flight, rebook, refund
washing machine | Sort the laundry by color and check all pockets. Use the short program for lightly soiled clothes only. Clean the filter at least twice a year. | laundry, program, filter
city council | The square will be closed to traffic from April to June. Buses stop at the old fire station instead. Residents receive a permit by mail. | square, permit, residents
software update | This update fixes a crash when large files are opened. It also adds a dark theme and keyboard shortcuts. Your settings and data are not affected. | crash, dark theme, keyboard shortcuts
library card | You may borrow up to ten items for four weeks. Late returns cost twenty cents a day. Reserved books are kept at the desk for one week. | items, late returns, desk
beehive | In spring the colony grows quickly and needs space. The beekeeper adds a second box on top of the first. Honey is harvested when most cells are capped. | colony, box, cells
swimming course | Children should be at least five years old and free of colds. Please bring a towel, goggles and a snack. Parents wait outside during the lesson. | towel, goggles, lesson
car insurance | Report any damage within one week, with photographs if possible. Minor scratches are not covered in the basic plan. The premium falls after three years without a claim. | damage, premium, claim
choir rehearsal | We start with breathing exercises and then go through the second movement. The tenors should look at bar forty at home. Dress for the concert is black. | movement, tenors, bar
solar panels | The panels face south and produce most at noon. An inverter turns direct current into alternating current. Surplus power is fed into the grid. | panels, inverter, grid
first aid poster | Check whether the person is breathing. Call the emergency number and say where you are. Do not move an injured person unless there is danger. | emergency number, injured person, danger
cheese shop | This cheese is made from raw sheep's milk and ripens for nine months in a cave. It has a nutty taste and a firm texture. Serve it at room temperature. | raw milk, cave, texture
train announcement | Because of a signal failure, this train ends at the next station. Passengers should continue on the regional train on platform four. Tickets remain valid on all routes. | signal failure, platform, regional train
fairy tale | Once upon a time a miller had three sons and a clever cat. When he died, the youngest inherited nothing but the cat. It asked for a pair of boots and a sack. | miller, sons, sack
paint can | Stir well before use and apply with a brush or roller. Let the first coat dry for six hours. Keep out of the reach of children. | brush, coat, roller
press release | The company has opened a repair center in the north of the country. Customers can send in devices of any age. Prices are shown online before a repair begins. | repair center, devices, customers
gym membership | The membership runs for twelve months and is extended unless canceled in time. It can be paused in case of illness. All classes are included except climbing. | membership, classes, illness
language school | Groups have no more than eight students. A placement test on the first day decides on the level. On Wednesdays we cook together after class. | placement test, level, class
weather report | Clouds will gather from the west in the morning. Showers and gusts are expected along the coast by evening. Temperatures drop to six degrees at night. | clouds, showers, gusts
chess club | Beginners are welcome on Tuesday evenings. We lend boards and clocks free of charge. The summer tournament is played over seven rounds. | boards, clocks, rounds
tax letter | You have to hand in the missing receipts within four weeks. If you do not reply, we will estimate the amount. Questions can be asked by phone on weekdays. | receipts, amount, weekdays
space exhibition | Visitors can touch a meteorite that is older than the Earth. A model shows how rockets drop their stages. The planetarium opens every full hour. | meteorite, stages, planetarium
garden center | Roses need sun and well-drained soil. Cut them back in early spring, just above a bud. Water them at the roots, never on the leaves. | soil, bud, roots
""")

PLACEHOLDERS = (
    '  "welcome": "Welcome back, <b>%s</b>!"',
    '  "count": "%d of %d entries shown"',
    '  "error": "Error %d: please try again in %s minutes."',
    '  "button": "<a href=\'/help\'>Help and contact</a>"',
    '  "updated": "Last change: %s"',
)

IDIOMS = {
    "German": "Ich verstehe nur Bahnhof | Da liegt der Hund begraben | jemandem die Daumen drücken | Das ist mir Wurst | den Nagel auf den Kopf treffen | ins Fettnäpfchen treten | Tomaten auf den Augen haben | Alles hat ein Ende, nur die Wurst hat zwei | auf dem Schlauch stehen | die Katze im Sack kaufen",
    "French": "avoir le cafard | poser un lapin à quelqu'un | les carottes sont cuites | avoir un coup de foudre | coûter les yeux de la tête | il pleut des cordes | tomber dans les pommes | donner sa langue au chat | avoir la tête dans les nuages | ce n'est pas la mer à boire",
    "Spanish": "estar en las nubes | tomar el pelo a alguien | costar un ojo de la cara | dar en el clavo | no tener pelos en la lengua | más vale tarde que nunca | echar una mano | estar como una cabra | ser pan comido | a lo hecho, pecho",
    "Italian": "in bocca al lupo | prendere due piccioni con una fava | costare un occhio della testa | non vedo l'ora | acqua in bocca | avere la testa fra le nuvole | chi dorme non piglia pesci | cadere dalle nuvole | rompere il ghiaccio | essere al verde",
    "Portuguese": "engolir sapos | estar com a cabeça nas nuvens | dar uma mãozinha | custar os olhos da cara | quem não arrisca não petisca | fazer uma tempestade num copo de água | pagar o pato | ficar de boca aberta | meter os pés pelas mãos | mais vale tarde do que nunca",
    "Dutch": "de kat uit de boom kijken | met de deur in huis vallen | nu komt de aap uit de mouw | de knoop doorhakken | iets onder de knie hebben | helaas pindakaas | de hond in de pot vinden | een oogje in het zeil houden | het regent pijpenstelen | wie het laatst lacht, lacht het best",
    "English": "to break the ice | to bite the bullet | to let the cat out of the bag | once in a blue moon | to hit the nail on the head | to be on the fence | a piece of cake | to cost an arm and a leg | to kill two birds with one stone | the ball is in your court | to cut corners | to miss the boat",
}  # fmt: skip
IDIOM_ASKS = (
    'What does the {language} expression "{idiom}" mean, and how would you say it in {other}?',
    'Translate the idiom "{idiom}" ({language}) literally and then by its meaning into {other}.',
    'Is there an equivalent of "{idiom}" in {other}? The original is {language}.',
    'Use "{idiom}" in a {language} sentence and translate the sentence into {other}.',
)


SOMEHOW = {"when": "some time", "where": "somewhere", "time": "some day", "person": "someone", "Person": "Someone"}


def tasks() -> Iterator[tuple[str, Writer]]:
    """Every content with its writer, who picks the direction; a sentence is one task in all languages."""
    for words, sentences in ((THINGS, THING_SENTENCES), (ACTIONS, ACTION_SENTENCES), (PLACES, PLACE_SENTENCES)):
        for sentence in sentences:
            for word in words:
                asked = sentence["en"].format_map(SOMEHOW | {"x": word["en"]})
                yield f"sentence: {asked}", partial(write, sentence, word, words)
    for thing, text, terms in rows(TEXTS):
        for kind, asks in FORMATTED.items():
            yield f"{kind}: {thing}", partial(write_formatted, asks, thing, text, terms)
        yield f"text: {thing}", partial(write_text, text)
    for language, idioms in IDIOMS.items():
        others = (
            [name for name in LANGUAGES.values() if name != language]
            if language == "English"
            else ["English"] * 3 + ["German" if language != "German" else "French"]
        )
        for idiom in idioms.split(" | "):
            yield f"idiom: {idiom}", framed(IDIOM_ASKS, ("",), ("",), language=language, idiom=idiom, other=others)


def write(sentence: dict[str, str], word: dict[str, str], words: list[dict[str, str]], rng: random.Random) -> str:
    """A sentence, or a message around it, to be translated in some direction or looked at."""
    if rng.random() < 0.14:
        return write_check(sentence, word, words, rng)
    source = compose(sentence, word, rng)
    code, second = rng.sample(FOREIGN, 2)
    slots = {
        "language": LANGUAGES[code],
        "second": LANGUAGES[second],
        "occasion": ("a trip", "an e-mail to a client", "a note on the door", "a friend", "my language class"),
        "someone": ("my landlord", "a colleague", "my host family", "a customer", "a friend abroad"),
        "n": (2, 3, 4),
    }
    way = rng.random()
    if way < 0.5:
        language = rng.choice(OTHERS) if rng.random() < 0.15 else LANGUAGES[code]
        return fill(rng, rng.choice(FROM_ENGLISH), text=source["en"], **slots | {"language": language})
    if way < 0.86:
        asks = NATIVE[code] if rng.random() < 0.2 else TO_ENGLISH
        return fill(rng, rng.choice(asks), text=source[code], **slots)
    return fill(rng, rng.choice(ACROSS), text=source[code], **slots)


def write_check(sentence: dict[str, str], word: dict[str, str], words: list[dict[str, str]], rng: random.Random) -> str:
    """A sentence with its translation to be judged, at times with the wrong word in it."""
    code = rng.choice(FOREIGN)
    asked = rng.choice(CHECKS)
    wrong = rng.choice(words) if "Explain" not in asked and rng.random() < 0.4 else word
    source = compose(sentence, word | {code: wrong[code]}, rng, more=0)
    return fill(rng, asked, text=source[code], english=source["en"], language=LANGUAGES[code])


def compose(sentence: dict[str, str], word: dict[str, str], rng: random.Random, more: float = 0.45) -> dict[str, str]:
    """The same sentence in every language, at times with others around it."""
    person, when, where, time = (rng.choice(table) for table in (PEOPLE, TIMES, PLACES, DEADLINES))
    parts = [sentence]
    if rng.random() < more:
        parts.append(rng.choice(MORE))
        if rng.random() < 0.4:
            parts.insert(0, rng.choice(GREETINGS))
            parts.append(rng.choice(CLOSINGS))
    joint = "\n" if len(parts) > 2 else " "
    texts = {}
    for code in LANGUAGES:
        values = {"x": word[code], "when": when[code], "where": where[code], "time": time[code], "person": person[code]}
        values |= {name.capitalize(): values[name][:1].upper() + values[name][1:] for name in ("x", "person")}
        texts[code] = joint.join(part[code].format_map(values) for part in parts)
    return texts


def write_text(text: str, rng: random.Random) -> str:
    """A paragraph to be translated from English."""
    language, second = rng.sample((*(LANGUAGES[code] for code in FOREIGN), *OTHERS), 2)
    slots = {
        "language": language,
        "second": second,
        "occasion": ("our website", "a leaflet", "foreign visitors", "a friend"),
    }
    return fill(rng, rng.choice(FROM_ENGLISH), text=text, **slots)


def write_formatted(asks: tuple[str, ...], thing: str, text: str, terms: str, rng: random.Random) -> str:
    """A text in a form that has to survive translation."""
    first, *others = text.rstrip(".").split(". ")
    words = terms.split(", ")
    language = rng.choice([LANGUAGES[code] for code in FOREIGN] * 3 + list(OTHERS))
    bullets = [f"- {sentence}." for sentence in (first, *others)]
    for word in words:
        bullets = [bullet.replace(word, f"**{word}**", 1) for bullet in bullets]
    keys = rng.choice((("title", "hint", "note"), ("line1", "line2", "line3"), ("msg.start", "msg.next", "msg.end")))
    strings = [f'  "{key}": "{sentence}."' for key, sentence in zip(keys, (first, *others), strict=True)]
    strings.insert(rng.randrange(4), rng.choice(PLACEHOLDERS))
    return fill(
        rng,
        rng.choice(asks),
        language=language,
        thing=thing if thing.endswith(("app", "update")) else f"{thing} page",
        code="{\n" + ",\n".join(strings) + "\n}",
        limit=(80, 90, 100, 120),
        names=", ".join(words[:2]),
        text=text,
        markdown=f"## {thing[0].upper()}{thing[1:]}\n\n" + "\n".join(bullets),
        audience=("children", "tourists", "engineers", "older readers", "business partners"),
        form=("the formal address", "the informal address", "the imperative", "the passive voice where it is natural"),
    )
